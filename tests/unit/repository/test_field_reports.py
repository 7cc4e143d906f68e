"""Each report of what went wrong elsewhere has a test for its kind, or its row says why not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from named_tests import NAMED, absent_tests

REPORTS = 69
_ROW = re.compile(r"^\| R(\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
_EXCUSES = ("open: ", "not testable here: ")


@pytest.fixture(scope="module")
def rows(root: Path) -> list[tuple[int, str]]:
    text = (root / "docs" / "field-reports.md").read_text(encoding="utf-8")
    return [(int(number), held) for number, _, held in _ROW.findall(text)]


def test_every_report_has_one_row(rows: list[tuple[int, str]]) -> None:
    assert [number for number, _ in rows] == [*range(1, REPORTS + 1)]


def test_every_row_names_a_test_or_says_why_there_is_none(rows: list[tuple[int, str]]) -> None:
    silent = [n for n, held in rows if not NAMED.search(held) and not held.startswith(_EXCUSES)]
    assert silent == []


def test_every_named_test_exists(root: Path, rows: list[tuple[int, str]]) -> None:
    assert absent_tests(root, [held for _, held in rows]) == []


def test_a_test_that_is_gone_or_elsewhere_is_named(root: Path) -> None:
    here = "tests/unit/repository/test_field_reports.py"
    wrong = [f"{here}::test_that_nobody_wrote", "tests/unit/none.py::test_every_report_has_one_row"]
    text = " ".join(f"`{name}`" for name in [*wrong, f"{here}::test_every_report_has_one_row"])
    assert absent_tests(root, [text]) == wrong[::-1]
