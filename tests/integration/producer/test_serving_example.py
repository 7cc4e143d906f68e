"""The serving example computes what canonical loading computes, bit by bit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checkpoints import MINILM, minilm_folder
from mortal import MORTAL
from weightlease.producer.snapshot import snapshot_folder
from weightlease.reports import StoreStatus
from weightlease.store.local import LocalStore

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
# byte 3 of a little-endian float32 holds its exponent
USED = "encoder.layer.3.attention.self.query.weight"


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*MORTAL, sys.executable, str(EXAMPLES / script), *arguments],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )


def printed(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    return [json.loads(line) for line in output.splitlines()]


def flip_one_exponent(path: Path) -> None:
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[:8], "little")
    begin, _ = json.loads(content[8 : 8 + length])[USED]["data_offsets"]
    content[8 + length + begin + 3] ^= 0x01
    path.write_bytes(content)


@pytest.mark.timeout(300)
def test_leased_weights_give_the_embeddings_of_canonical_loading_and_a_flipped_bit_does_not(
    tmp_path: Path,
) -> None:
    store = LocalStore(tmp_path / "store")
    result = store.get_or_build(snapshot_folder(str(minilm_folder()), model_id=MINILM))
    assert result.status is StoreStatus.BUILT, result.failure
    assert result.lease is not None
    key, size = result.lease.key, result.lease.shared_bytes
    result.lease.close()
    damaged = tmp_path / "damaged"
    shutil.copytree(minilm_folder(), damaged)
    flip_one_exponent(damaged / "model.safetensors")

    serving = start("serve_minilm.py", "--store", store.root, "--artifact", key, "--once")
    canonical = start("canonical_minilm.py", str(minilm_folder()), str(damaged))
    (report,) = printed(serving)
    original, flipped = printed(canonical)

    assert report["embeddingSha256"] == original["embeddingSha256"]
    assert report["embeddingSha256"] != flipped["embeddingSha256"]
    assert report["artifactBytes"] == size
    assert 0 < report["pssBytes"] <= report["rssBytes"] <= size + 4096
