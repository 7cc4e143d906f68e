"""The page of metrics is what the processes' registries say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_metrics_page_is_current(root: Path, tmp_path: Path) -> None:
    page = tmp_path / "metrics.md"
    program = root / "hack" / "docs" / "metrics_document.py"
    subprocess.run([sys.executable, program, page], check=True)
    assert (root / "docs" / "metrics.md").read_text() == page.read_text(), "run `make generate`"
