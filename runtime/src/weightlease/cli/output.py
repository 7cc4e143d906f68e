"""What the command line prints: aligned columns for people, one JSON object for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from weightlease.errors import WeightLeaseError

_UNITS = ("B", "Ki", "Mi", "Gi", "Ti")


def print_json(value: dict[str, Any]) -> None:
    """One object on standard output."""
    print(json.dumps(value, indent=2), flush=True)


def print_line(text: str) -> None:
    """One line for people on standard output.

    Names and reasons come from artifacts and peers: what would move the cursor, hide something or
    not fit the terminal's encoding is shown by its escape.
    """
    print(_shown(text, sys.stdout), flush=True)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their widest cell, three spaces apart."""
    shown = [tuple(_shown(cell, sys.stdout) or "-" for cell in row) for row in rows]
    lines = [tuple(headings), *shown]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print_line("   ".join(cells).rstrip())


def print_fields(fields: dict[str, str]) -> None:
    """One `name: value` a line, values aligned."""
    width = max(map(len, fields)) + 1
    for name, value in fields.items():
        print_line(f"{name + ':':<{width}} {value or '-'}".rstrip())


def print_error(error: WeightLeaseError, output: str) -> None:
    """One failure on standard error."""
    if output == "json":
        failure = error.failure
        body = {
            "stage": str(failure.stage),
            "code": str(failure.code),
            "retryable": failure.retryable,
            "message": failure.message,
            "details": failure.details,
        }
        print(json.dumps({"error": body}, default=str), file=sys.stderr)
    else:
        print(_shown(f"weightlease: {error}", sys.stderr), file=sys.stderr)


def print_problem(message: str, output: str) -> None:
    """What went wrong where no failure says it."""
    text = json.dumps({"error": {"message": message}})
    print(
        text if output == "json" else _shown(f"weightlease: {message}", sys.stderr), file=sys.stderr
    )


def human_bytes(count: int) -> str:
    """`count` bytes with one decimal and a binary unit."""
    size = float(count)
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.0f}{unit}" if unit == "B" else f"{size:.1f}{unit}"
        size /= 1024
    return f"{size:.1f}{_UNITS[-1]}"


def _shown(text: str, stream: TextIO) -> str:
    printable = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
    encoding = stream.encoding or "utf-8"
    return printable.encode(encoding, "backslashreplace").decode(encoding)
