"""`python hack/docs/document_sentences.py FILE`: number the sentences of a Markdown document.

Headings and code are left out. docs/gpu-donor.md refers to a document by these numbers.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path


def sentences(text: str) -> list[str]:
    """Every sentence, in order, each on one line; number 1 is the first."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    paragraphs = (" ".join(each.split()) for each in re.split(r"\n\s*\n", prose))
    return [
        sentence
        for paragraph in paragraphs
        if paragraph and not paragraph.startswith("#")
        for sentence in re.split(r"(?<=[.:])\s+(?=[A-Z`])", paragraph)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="the document")
    for number, sentence in enumerate(sentences(parser.parse_args().file.read_text()), 1):
        print(f"{number:3} {sentence}")


if __name__ == "__main__":
    main()
