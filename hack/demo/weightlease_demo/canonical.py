"""What the embeddings must be: computed from the original file by a process that knows no lease."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from weightlease_demo.cluster import REPOSITORY, ClusterError


def canonical_digest(folder: Path) -> str:
    """Sha256 of the example embeddings, from a separate process that maps `folder`'s weights."""
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "examples" / "canonical_minilm.py"), str(folder)],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise ClusterError(f"canonical loading failed: {done.stderr.strip()[-2000:]}")
    digest: str = json.loads(done.stdout.splitlines()[-1])["embeddingSha256"]
    return digest
