"""Tests as pages name them: `tests/folder/test_file.py::test_name`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def absent_tests(root: Path, texts: Iterable[str]) -> list[str]:
    """Tests that `texts` name and the repository at `root` does not define, sorted."""
    named = {pair for text in texts for pair in NAMED.findall(text)}
    defined = {path: _functions_of(root / path) for path, _ in named}
    return sorted(f"{path}::{name}" for path, name in named if name not in defined[path])


def _functions_of(path: Path) -> set[str]:
    if not path.exists():
        return set()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, functions)}
