"""Nothing in the repository names a package host or a path of one machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

# joined here so that this file does not hold what it forbids
HOSTS = [
    ".".join(labels)
    for labels in (
        ("pypi", "org"),
        ("files", "pythonhosted", "org"),
        ("proxy", "golang", "org"),
        ("sum", "golang", "org"),
        ("deb", "debian", "org"),
        ("registry", "npmjs", "org"),
    )
]
PATHS = [
    "/".join(("", "root", "")),
    "/".join(("", "work", "main")),
    "/".join(("", "work", "shared")),
]
FORBIDDEN = re.compile("|".join(map(re.escape, [*HOSTS, *PATHS])))


def test_no_file_names_a_package_host_or_a_machine_path(root: Path, files: list[Path]) -> None:
    found = {
        str(path.relative_to(root)): sorted(set(matches))
        for path in files
        if (matches := FORBIDDEN.findall(path.read_text(errors="replace")))
    }
    assert found == {}


@pytest.mark.parametrize("text", [f"https://{HOSTS[0]}/simple", f"cd {PATHS[0]}x"])
def test_a_host_and_a_path_are_recognised(text: str) -> None:
    assert FORBIDDEN.search(text)
