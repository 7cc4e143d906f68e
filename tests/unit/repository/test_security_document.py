"""The matrix on the page is the one that a real agent is held to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def rewrite(root: Path, page: Path) -> int:
    program = root / "hack" / "docs" / "security_document.py"
    environment = os.environ | {"PYTHONPATH": str(root / "tests" / "support")}
    command = [sys.executable, str(program), str(page)]
    return subprocess.run(command, check=False, env=environment, stderr=subprocess.PIPE).returncode


def test_the_matrix_on_the_page_is_current(root: Path, tmp_path: Path) -> None:
    page = tmp_path / "security.md"
    shutil.copy(root / "docs" / "security.md", page)
    assert rewrite(root, page) == 0
    written = page.read_text()
    assert written == (root / "docs" / "security.md").read_text(), "run `make generate`"
    page.write_text(written.replace("| bare host: another uid |", "| somebody |"))
    assert rewrite(root, page) == 0
    assert page.read_text() == written


def test_a_page_without_the_section_is_left_alone(root: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Nothing\n")
    assert rewrite(root, page) != 0
    assert page.read_text() == "# Nothing\n"
