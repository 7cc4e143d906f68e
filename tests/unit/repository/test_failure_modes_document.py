"""The page of failure modes is what the code's tables say, with a row for each reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from weightlease.reasons import Reason


def test_the_failure_modes_page_is_current_and_names_every_reason(
    root: Path, tmp_path: Path
) -> None:
    page = tmp_path / "failure-modes.md"
    program = root / "hack" / "docs" / "failure_modes_document.py"
    subprocess.run([sys.executable, program, page], check=True)
    text = (root / "docs" / "failure-modes.md").read_text()
    assert text == page.read_text(), "run `make generate`"
    assert [reason for reason in Reason if f"| `{reason}` |" not in text] == []
