"""The command line on a real public checkpoint, with the engine that reads it."""

from __future__ import annotations

import sys
from pathlib import Path

from checkpoints import MINILM, MINILM_WEIGHTS_SHA256, minilm_folder
from command_line import spawned


def test_the_real_checkpoint_is_published_verified_and_read_by_transformers(tmp_path: Path) -> None:
    folder, root = minilm_folder(), tmp_path / "store"
    published = spawned("publish", folder, "--root", root, "--model-id", MINILM, "-o", "json")
    assert published.code == 0, published.error
    key = published.json["key"]
    assert spawned("verify", key, "--root", root).code == 0
    manifest = spawned("inspect", key, "--root", root, "-o", "json").json["manifest"]
    assert manifest["files"][0]["sha256"] == MINILM_WEIGHTS_SHA256
    program = (
        "import os; from transformers import AutoModel, AutoTokenizer\n"
        "d = os.environ['WEIGHTLEASE_DIR']; model = AutoModel.from_pretrained(d)\n"
        "batch = AutoTokenizer.from_pretrained(d)('hello world', return_tensors='pt')\n"
        "print(tuple(model(**batch).last_hidden_state.shape))"
    )
    done = spawned("lease", key, "--root", root, "--", sys.executable, "-c", program)
    assert done.code == 0, done.error
    assert done.out == "(1, 4, 384)\n"
