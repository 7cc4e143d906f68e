"""What the command line prints: aligned columns for people, one JSON object for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from weightlease.errors import WeightLeaseError

_UNITS = ("B", "Ki", "Mi", "Gi", "Ti")


def print_json(value: dict[str, Any]) -> None:
    """One object on standard output."""
    print(json.dumps(value, indent=2), flush=True)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their widest cell, three spaces apart."""
    lines = [tuple(headings), *(tuple(cell or "-" for cell in row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("   ".join(cells).rstrip(), flush=True)


def print_fields(fields: dict[str, str]) -> None:
    """One `name: value` a line, values aligned."""
    width = max(map(len, fields)) + 1
    for name, value in fields.items():
        print(f"{name + ':':<{width}} {value or '-'}".rstrip(), flush=True)


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
        print(f"weightlease: {error}", file=sys.stderr)


def print_problem(message: str, output: str) -> None:
    """What went wrong where no failure says it."""
    text = json.dumps({"error": {"message": message}}) if output == "json" else message
    print(text if output == "json" else f"weightlease: {text}", file=sys.stderr)


def human_bytes(count: int) -> str:
    """`count` bytes with one decimal and a binary unit."""
    size = float(count)
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.0f}{unit}" if unit == "B" else f"{size:.1f}{unit}"
        size /= 1024
    return f"{size:.1f}{_UNITS[-1]}"
