"""The fingerprint's bytes are frozen: it is part of every snapshot's key."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from weightlease.producer.snapshot import SNAPSHOT
from weightlease.source.fingerprint import fingerprint
from weightlease.source.model import SourceFile

GOLDEN = Path(__file__).parent / "golden"
VECTORS: list[dict[str, Any]] = json.loads((GOLDEN / "fingerprints.json").read_text())


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_a_fingerprint_is_the_digest_of_the_sorted_rows(vector: dict[str, Any]) -> None:
    files = [SourceFile(*row) for row in vector["files"]]
    assert hashlib.sha256(vector["canonical"].encode()).hexdigest() == vector["fingerprint"]
    assert fingerprint(files) == fingerprint(reversed(files)) == vector["fingerprint"]


def test_files_without_a_digest_or_named_twice_have_no_fingerprint() -> None:
    file = SourceFile("a", 1, "0" * 64)
    with pytest.raises(ValueError, match="no sha256"):
        fingerprint([SourceFile("a", 1)])
    with pytest.raises(ValueError, match="twice"):
        fingerprint([file, file])


def test_the_snapshot_producers_abi_is_frozen() -> None:
    identities = json.loads((GOLDEN / "identities.json").read_text())
    producer = identities[0]["identity"]["producer"]
    assert producer == {name: getattr(SNAPSHOT, name) for name in SNAPSHOT.__struct_fields__}
