"""The fingerprint of the selected files, which enters the identity.

    sha256(canonical JSON of [[path, size, sha256], ...])

sorted by path (code points), payload and assets alike; paths are relative to the component.
Golden vectors in tests/contract freeze the bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from weightlease.canonical import canonical_json, sha256_hex
from weightlease.source.model import SourceFile

_SHA256 = re.compile(r"[0-9a-f]{64}")


def fingerprint(files: Iterable[SourceFile]) -> str:
    """Digest of `files` as 64 lowercase hex digits.

    Raises:
        ValueError: a file without a sha256, or one path twice.

    """
    rows = sorted([file.path, file.size, file.sha256] for file in files)
    paths = [row[0] for row in rows]
    if len(set(paths)) != len(paths):
        raise ValueError("one path is selected twice")
    for path, _, digest in rows:
        if _SHA256.fullmatch(str(digest)) is None:
            raise ValueError(f"file {path!r} has no sha256 yet")
    return sha256_hex(canonical_json(rows))
