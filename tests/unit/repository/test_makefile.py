"""Every target is documented, and every folder of tests is run by one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

# tests/gpu needs an accelerator and has a runner of its own; tests/support holds no tests
RUN_ELSEWHERE = {"gpu", "support"}


def targets_of(makefile: str) -> dict[str, str]:
    """Returns each target that a person may name, with its help line or an empty text."""
    found = re.findall(r"^([a-z][a-z0-9-]*):(?!=)([^#\n]*)(?:## *(.*))?$", makefile, re.MULTILINE)
    return {name: help_line for name, _, help_line in found}


def test_every_target_has_a_help_line(root: Path) -> None:
    targets = targets_of((root / "Makefile").read_text())
    assert targets
    assert [name for name, help_line in targets.items() if not help_line] == []


def test_help_lists_every_target(root: Path) -> None:
    listing = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    listed = {line.split()[0] for line in listing.splitlines() if line}
    assert listed == set(targets_of((root / "Makefile").read_text()))


def test_every_target_is_phony(root: Path) -> None:
    makefile = (root / "Makefile").read_text()
    phony = set(re.findall(r"^\.PHONY: (\S+)$", makefile, re.MULTILINE))
    assert phony == set(targets_of(makefile))


def test_every_folder_of_tests_is_run_by_the_makefile(root: Path) -> None:
    makefile = (root / "Makefile").read_text()
    folders = {path.parts[-2] for path in root.glob("tests/*/*")} | {
        path.name for path in root.glob("tests/*/") if any(path.rglob("test_*.py"))
    }
    named = set(re.findall(r"tests/([a-z0-9]+)", makefile))
    assert {name for name in folders if not name.startswith("__")} - RUN_ELSEWHERE <= named
