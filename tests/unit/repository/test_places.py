"""Nothing in the repository names a package host or a path of one machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

# written so that this file does not match it
FORBIDDEN = re.compile(
    r"\b(?:pypi|files\.pythonhosted|(?:proxy|sum)\.golang|deb\.debian|registry\.npmjs)\.org\b"
    r"|(?<![\w.])/(?:root|work/(?:main|shared))/"
)


def test_no_file_names_a_package_host_or_a_machine_path(root: Path, files: list[Path]) -> None:
    found = {
        str(path.relative_to(root)): sorted(set(matches))
        for path in files
        if (matches := FORBIDDEN.findall(path.read_text(errors="replace")))
    }
    assert found == {}


@pytest.mark.parametrize(("start", "rest"), [("https://pypi", ".org/simple"), ("cd /root", "/x")])
def test_a_host_and_a_path_are_recognised(start: str, rest: str) -> None:
    assert FORBIDDEN.search(start + rest)
