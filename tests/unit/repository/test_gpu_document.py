"""docs/gpu-donor.md accounts for every sentence of the donor document, by tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

SENTENCES = 75


def rows(root: Path) -> list[tuple[set[int], str]]:
    text = (root / "docs" / "gpu-donor.md").read_text()
    found = re.findall(r"^\| ([\d, -]+) \| (.*) \|$", text, re.MULTILINE)
    return [(numbers(cell), held) for cell, held in found]


def numbers(cell: str) -> set[int]:
    found: set[int] = set()
    for part in cell.split(","):
        first, _, last = part.strip().partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def test_every_sentence_has_one_row(root: Path) -> None:
    listed = sorted(number for cell, _ in rows(root) for number in cell)
    assert listed == list(range(1, SENTENCES + 1))


def test_every_named_test_exists(root: Path) -> None:
    defined = {
        name
        for path in (root / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    named = {name for _, held in rows(root) for name in re.findall(r"`(test_\w+)`", held)}
    assert named
    assert named - defined == set()


def test_sentences_are_numbered_without_headings_and_code() -> None:
    from importlib.util import module_from_spec, spec_from_file_location

    path = Path(__file__).parents[3] / "hack" / "docs" / "document_sentences.py"
    spec = spec_from_file_location("document_sentences", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (
        "# Title\n\nOne is here. Two\nfollows: `three` ends.\n\n```python\nNo. Code.\n```\n\nFour."
    )
    assert module.sentences(text) == ["One is here.", "Two follows:", "`three` ends.", "Four."]
