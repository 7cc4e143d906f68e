"""Ceilings on files and functions, so that each keeps one subject."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

FILE_CEILING = 500
FUNCTION_CEILING = 60
SOURCE_SUFFIXES = {".py", ".go", ".sh"}

# path, or path:function, and why it may pass its ceiling
ALLOWED: dict[str, str] = {}


def lengths(root: Path, files: list[Path]) -> Iterator[tuple[str, int, int]]:
    """Yields what has a length: its name, its lines, its ceiling."""
    for path in files:
        if path.suffix not in SOURCE_SUFFIXES:
            continue
        name, text = str(path.relative_to(root)), path.read_text()
        yield name, len(text.splitlines()), FILE_CEILING
        if path.suffix == ".py":
            for function, count in function_lengths(text):
                yield f"{name}:{function}", count, FUNCTION_CEILING


def function_lengths(text: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            yield node.name, node.end_lineno - node.lineno + 1


def test_files_and_functions_stay_below_their_ceilings(root: Path, files: list[Path]) -> None:
    over = {name: count for name, count, ceiling in lengths(root, files) if count > ceiling}
    assert {name: count for name, count in over.items() if name not in ALLOWED} == {}
    assert set(ALLOWED) <= set(over), "an exception that is no longer needed goes"


def test_a_long_function_is_measured_with_its_last_line() -> None:
    body = "\n".join(["async def long():", *["    pass"] * FUNCTION_CEILING])
    assert dict(function_lengths(body)) == {"long": FUNCTION_CEILING + 1}
