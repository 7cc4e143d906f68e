from __future__ import annotations

from pathlib import Path

import pytest

from command_line import weightlease
from small_artifact import safetensors_bytes


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny sharded checkpoint with assets in two folders."""
    folder = tmp_path_factory.mktemp("checkpoint")
    weights = {"w": ("F32", (2, 2), bytes(16)), "b": ("U8", (3,), b"abc")}
    (folder / "model.safetensors").write_bytes(safetensors_bytes(weights))
    (folder / "config.json").write_text("{}")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling": true}')
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def key(checkpoint: Path, root: Path) -> str:
    """The tiny checkpoint, published in `root`."""
    done = weightlease("publish", checkpoint, "--root", root, "--model-id", "tiny", "-o", "json")
    assert done.code == 0, done.error
    return str(done.json["key"])
