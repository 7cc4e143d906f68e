"""`python hack/docs/normative.py DOCUMENT`: number the rows and normative sentences of a document.

    M<n>  row n of the table of modes, F<n> of failures, P<n> of parallel dimensions
    R<n>  item n of the numbered requirements    V<n>  of the validations
    S<n>  sentence n, in order, that holds a normative word, whatever list or paragraph it is in

Each comes with eight digits of the sha256 of its text, white space apart, so that a mapping shows
when the document under it has changed. `--check PAGE` compares a page that maps the numbers.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NORMATIVE = re.compile(
    r"\b(?:must|never|cannot|may|only|always|until|refuses?|rejects?|does not|do not|is not"
    r"|are not|has no|no open|remains?|owns a|keep a|keeps|uses a|bounds|gates|contains"
    r"|contract covers|records|snapshots|binds|fails|retains|can retry|have separate"
    r"|performs exact)\b"
)
TABLES = {"Mode": "M", "Condition": "F", "Dimension": "P"}
LISTS = {"A consumer PR must:": "R", "Consumer validation must prove:": "V"}
_SENTENCE = re.compile(r"(?<=[.:!?])\s+(?=[A-Z`])")
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.)\s+")
# what a page says of one statement: | M1 | 0123abcd | … |
_MAPPED = re.compile(r"^\| ([MFPRVS]\d+) \| ([0-9a-f]{8}) \|", re.MULTILINE)


@dataclass(frozen=True)
class Statement:
    """One numbered statement and its text."""

    number: str
    text: str

    @property
    def digest(self) -> str:
        """Eight digits that change with the text."""
        return hashlib.sha256(" ".join(self.text.split()).encode()).hexdigest()[:8]


def statements(document: str) -> list[Statement]:
    """Everything in `document` that has a number."""
    found: list[Statement] = []
    counts: dict[str, int] = {}
    heading = ""
    for block in _blocks(document):
        if block.startswith("|"):
            letter = TABLES.get(_cells(block)[0], "")
            texts = block.splitlines()[2:] if letter else []
        elif heading in LISTS and _ITEM.match(block):
            letter, texts = LISTS[heading], [_ITEM.sub("", block, count=1)]
        else:
            letter = "S"
            plain = _ITEM.sub("", block, count=1) if _ITEM.match(block) else block
            texts = [each for each in _SENTENCE.split(plain) if NORMATIVE.search(each)]
            heading = block if block in LISTS else ("" if not _ITEM.match(block) else heading)
            if block in LISTS:
                texts = []
        for text in texts:
            counts[letter] = counts.get(letter, 0) + 1
            found.append(Statement(f"{letter}{counts[letter]}", text))
    return found


def mapped(page: str) -> dict[str, str]:
    """Numbers that a page maps, with the digest it mapped them at."""
    return dict(_MAPPED.findall(page))


def differences(document: str, page: str) -> list[str]:
    """Where a page and the document disagree, in words."""
    wanted = {each.number: each.digest for each in statements(document)}
    said = mapped(page)
    absent = [f"{number} is not on the page" for number in wanted if number not in said]
    foreign = [f"{number} is not in the document" for number in said if number not in wanted]
    changed = [
        f"{number} has changed: {said[number]} on the page, {digest} in the document"
        for number, digest in wanted.items()
        if number in said and said[number] != digest
    ]
    return absent + foreign + changed


def _blocks(document: str) -> Iterator[str]:
    """Paragraphs, list items with their continuation lines, and whole tables."""
    block: list[str] = []
    fenced = False
    for line in [*document.splitlines(), ""]:
        if line.lstrip().startswith("```"):
            fenced = not fenced
        table = line.startswith("|")
        begins = not line.strip() or fenced or line.startswith("#") or "```" in line
        if block and (begins or _ITEM.match(line) or table != block[0].startswith("|")):
            joined = "\n".join(block) if block[0].startswith("|") else " ".join(block)
            yield joined.strip()
            block = []
        if not begins:
            block.append(line if table else line.strip() if block else line)


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.splitlines()[0].strip("|").split("|")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("document", type=Path, help="the Host Weight Runtime feature document")
    parser.add_argument("--check", type=Path, help="a page that maps the numbers")
    arguments = parser.parse_args()
    document = arguments.document.read_text(encoding="utf-8")
    if arguments.check is None:
        for each in statements(document):
            print(f"{each.number}\t{each.digest}\t{' '.join(each.text.split())}")
        return 0
    found = differences(document, arguments.check.read_text(encoding="utf-8"))
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
