"""Canonical JSON: one byte string per value, so that its sha256 can name the value.

Sorted string keys, no white space, ASCII escapes, no NaN and no infinity: the encoding that the
Host Weight Runtime hashes, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

_sorted = msgspec.json.Encoder(order="sorted")


def canonical_json(value: Any) -> bytes:
    """Encode JSON-compatible `value`.

    Raises:
        ValueError: a non-finite number, or nesting without end.
        TypeError: a value or a mapping key that JSON has no exact form for.

    """
    _require_string_keys(value)
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode("ascii")


def canonical_plain(value: msgspec.Struct | dict[str, Any]) -> bytes:
    """`canonical_json` of texts, whole numbers and containers of them, several times quicker.

    Not for fractions, which the two encoders write differently.
    """
    data = _sorted.encode(value)
    if data.isascii() and b"\\" not in data and b"\x7f" not in data:
        return data
    # The quick encoder escapes other characters than the canonical form does.
    return canonical_json(msgspec.to_builtins(value))


def sha256_hex(data: bytes) -> str:
    """Sha256 of `data` as 64 lowercase hex digits."""
    return hashlib.sha256(data).hexdigest()


def _require_string_keys(value: Any) -> None:
    # json.dumps would turn 1, True and None into strings and let two keys collide.
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"mapping key {key!r} is not a string")
            _require_string_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _require_string_keys(item)
