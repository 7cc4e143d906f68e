"""The folder named like a module of the standard library must never be importable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = "import collections, operator; operator.itemgetter"


def run_python_in(folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a Python without site packages, whose .pth files would hide the fault."""
    return subprocess.run(
        [sys.executable, "-E", "-S", "-c", PROGRAM],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
    )


def test_the_standard_operator_module_wins_in_the_repository_root(root: Path) -> None:
    finished = run_python_in(root)
    assert finished.returncode == 0, finished.stderr


def test_an_init_file_in_the_folder_would_be_noticed(tmp_path: Path) -> None:
    (tmp_path / "operator").mkdir()
    (tmp_path / "operator" / "__init__.py").touch()
    assert run_python_in(tmp_path).returncode != 0


def test_no_python_file_lies_directly_under_the_folder(root: Path) -> None:
    assert [path.name for path in (root / "operator").glob("*.py*") if path.suffix != ".toml"] == []


def test_no_test_lies_under_the_folder(root: Path) -> None:
    found = [*(root / "operator").rglob("test_*.py"), *(root / "operator").rglob("conftest.py")]
    assert found == []
