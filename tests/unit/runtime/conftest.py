from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from descriptors import open_descriptors
from small_artifact import SmallArtifact, make_artifact

WEIGHT = np.arange(48, dtype="<f4").reshape(6, 8)


@pytest.fixture
def artifact(tmp_path: Path) -> SmallArtifact:
    """Two payload files with awkward tensors, and two assets."""
    return make_artifact(
        tmp_path / "artifact",
        {
            "model-00001.safetensors": {
                "encoder.weight": ("F32", (6, 8), WEIGHT.tobytes()),
                "encoder.half": ("BF16", (4,), b"\x80\x3f" * 4),
                "scale": ("F32", (), np.float32(0.5).tobytes()),
                "empty": ("F32", (0, 7), b""),
            },
            "model-00002.safetensors": {
                "future": ("F4", (8,), b"\x12\x34\x56\x78"),
                "tiny": ("F8_E4M3", (2, 2), b"\x01\x02\x03\x04"),
                "unknown": ("Q3_K", (8,), b"abc"),
            },
        },
        {"config.json": b"{}", "1_Pooling/config.json": b'{"pooling": true}'},
    )


@pytest.fixture
def descriptors() -> list[str]:
    return open_descriptors()
