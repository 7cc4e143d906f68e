"""`python hack/docs/security_document.py FILE`: write the access matrix into docs/security.md.

The table that a real agent is held to (tests/support/access_matrix.py, on PYTHONPATH) replaces what
stands between the two markers; everything else on the page is written by hand.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from access_matrix import as_markdown

BEGIN = "<!-- access matrix: written by `make generate` -->\n"
END = "<!-- end of the access matrix -->\n"


def with_matrix(page: str) -> str:
    """The page with the present table.

    Raises:
        ValueError: the markers are not there, once each and in order.

    """
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    if page.count(BEGIN) != 1 or page.count(END) != 1 or not rest:
        raise ValueError(f"the page has no section between {BEGIN.strip()!r} and {END.strip()!r}")
    return f"{before}{BEGIN}\n{as_markdown()}\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="the page, rewritten in place")
    path: Path = parser.parse_args().file
    path.write_text(with_matrix(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
