from __future__ import annotations

from pathlib import Path

import pytest

from descriptors import open_descriptors
from small_artifact import SmallArtifact, make_artifact


@pytest.fixture
def artifact(tmp_path: Path) -> SmallArtifact:
    return make_artifact(
        tmp_path / "artifact",
        {
            "a.safetensors": {"a": ("I32", (2,), b"\1\0\0\0\2\0\0\0")},
            "b.safetensors": {"b": ("U8", (3,), b"xyz")},
        },
        {"config.json": b"{}"},
    )


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    return tmp_path / "agent.sock"


@pytest.fixture
def descriptors() -> list[str]:
    return open_descriptors()
