"""Each statement of the Host Weight Runtime document is held by a test, or its row says why not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from named_tests import NAMED, absent_tests

PAGE = "docs/host-weight-runtime.md"
_ROW = re.compile(r"^\| ([MFPRVS])(\d+) \| [0-9a-f]{8} \| (.+) \| (.+) \|$", re.MULTILINE)
_EXCUSES = ("open: ", "outside: ", "no promise")
# how many statements of each kind the document has
COUNTS = {"M": 3, "F": 10, "P": 5, "R": 8, "V": 7, "S": 63}

DOCUMENT = """\
# A document

It explains. It must not lie; a reader may check.

```
this must not count
```

| Mode | Behavior |
| --- | --- |
| `on` | works |
| `off` | sleeps |

A consumer PR must:

1. Read
   all of it.
2. Obey.

Afterwards it rests. It never
stops.
"""


@pytest.fixture(scope="module")
def rows(root: Path) -> list[tuple[str, int, str, str]]:
    text = (root / PAGE).read_text(encoding="utf-8")
    return [(kind, int(number), words, held) for kind, number, words, held in _ROW.findall(text)]


def test_every_statement_has_a_row(rows: list[tuple[str, int, str, str]]) -> None:
    for kind, count in COUNTS.items():
        assert [number for found, number, _, _ in rows if found == kind] == [*range(1, count + 1)]


def test_every_row_names_a_test_or_says_why_there_is_none(
    rows: list[tuple[str, int, str, str]],
) -> None:
    silent = [
        f"{kind}{number}"
        for kind, number, _, held in rows
        if not NAMED.search(held) and not held.startswith(_EXCUSES)
    ]
    assert silent == []


def test_every_named_test_exists(root: Path, rows: list[tuple[str, int, str, str]]) -> None:
    held = [held for _, _, _, held in rows]
    assert len({pair for text in held for pair in NAMED.findall(text)}) > 50
    assert absent_tests(root, held) == []


def program(root: Path, *arguments: Path | str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "hack" / "docs" / "normative.py"), *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "document.md"
    path.write_text(DOCUMENT)
    return path


def test_statements_are_numbered_by_kind_and_code_is_left_out(root: Path, document: Path) -> None:
    lines = program(root, document).stdout.splitlines()
    found = [(number, text) for number, _, text in (line.split("\t") for line in lines)]
    assert found == [
        ("S1", "It must not lie; a reader may check."),
        ("M1", "| `on` | works |"),
        ("M2", "| `off` | sleeps |"),
        ("R1", "Read all of it."),
        ("R2", "Obey."),
        ("S2", "It never stops."),
    ]


def test_a_page_that_lags_behind_its_document_is_named(
    root: Path, document: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    lines = [line.split("\t") for line in program(root, document).stdout.splitlines()]
    page.write_text("\n".join(f"| {number} | {digest} | x | y |" for number, digest, _ in lines))
    assert program(root, document, "--check", page).returncode == 0
    document.write_text(DOCUMENT.replace("sleeps", "dreams").replace("It never\nstops.", ""))
    checked = program(root, document, "--check", page)
    assert checked.returncode == 1
    assert [line.split()[0] for line in checked.stdout.splitlines()] == ["S2", "M2"]
