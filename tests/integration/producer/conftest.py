"""A small checkpoint and a Hub that serves it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hub_setup import TOKEN, HubSetup, serve
from tensor_files import index_file, tensor_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "sub").mkdir(parents=True)
    (root / "1.safetensors").write_bytes(tensor_file({"a": bytes(range(256)) * 40}))
    (root / "2.safetensors").write_bytes(tensor_file({"b": b"2"}))
    (root / "model.safetensors.index.json").write_bytes(
        index_file({"a": "1.safetensors", "b": "2.safetensors"})
    )
    (root / "config.json").write_text('{"x": 1}')
    (root / "sub" / "vocab.txt").write_text("a\nb\n")
    (root / ".gitattributes").write_text("x")
    return root


@pytest.fixture
def hub(folder: Path, tmp_path: Path) -> Iterator[HubSetup]:
    setup = serve(folder, tmp_path / "scratch")
    with setup.server, setup.stack:
        yield setup


@pytest.fixture
def private_hub(folder: Path, tmp_path: Path) -> Iterator[HubSetup]:
    setup = serve(folder, tmp_path / "scratch", token=TOKEN)
    with setup.server, setup.stack:
        yield setup


@pytest.fixture
def gated_hub(folder: Path, tmp_path: Path) -> Iterator[HubSetup]:
    setup = serve(folder, tmp_path / "scratch", token=TOKEN, gated=True)
    with setup.server, setup.stack:
        yield setup
