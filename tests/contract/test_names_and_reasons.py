"""Names, reasons and lease files that separate processes must read alike."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from weightlease.errors import ManifestError
from weightlease.lease_record import Holder, HolderKind, LeaseRecord, parse_lease_record
from weightlease.names import ArtifactReference, hashed_name, parse_reference
from weightlease.reasons import (
    EXIT_STATUS,
    MAX_TERMINATION_BYTES,
    NON_RETRYABLE_EXIT_CODES,
    Reason,
    TerminationMessage,
    decode_termination,
    encode_termination,
)


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("minilm", ArtifactReference("minilm")),
        ("team-a/minilm", ArtifactReference("minilm", "team-a")),
        ("wan.2:vae", ArtifactReference("wan.2", component="vae")),
        ("a/wan:dit@pp0.tp1", ArtifactReference("wan", "a", "dit", "pp0.tp1")),
        ("wan@ep3", ArtifactReference("wan", coordinates="ep3")),
    ],
)
def test_a_reference_reads_back_as_written(text: str, reference: ArtifactReference) -> None:
    assert parse_reference(text) == reference
    assert str(reference) == text


@pytest.mark.parametrize(
    "text", ["", "A", "a/b/c", "a:", "a@", "a@xx1", "../a", "a b", "a:b:c", "a" * 600, "a\n", "-a"]
)
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a reference"):
        parse_reference(text)


def test_hashed_names_are_stable_short_and_tell_their_parts_apart() -> None:
    name = hashed_name("prewarm-" + "x" * 80, "a", "b")
    assert name == hashed_name("prewarm-" + "x" * 80, "a", "b")
    assert len(name) == 52
    assert len({hashed_name("p", "ab", "c"), hashed_name("p", "a", "bc"), name}) == 3


@pytest.mark.parametrize("limit", [52, 63])
@pytest.mark.parametrize("filler", ["-", ".", "a.b-"])
def test_a_hashed_name_is_one_of_kubernetes_wherever_a_long_one_is_cut(
    filler: str, limit: int
) -> None:
    longest = [("a" * start + filler * 253)[:252] + "z" for start in range(1, 70)]
    # a name of only this filler is none, but what a cut leaves of one is
    for name in longest:
        found = hashed_name(name, name, limit=limit)
        assert len(found) <= limit
        assert re.fullmatch(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?", found)
        assert not re.search(r"[-.]-[0-9a-f]{10}$", found)
    alike = {hashed_name(name, name, limit=limit) for name in (longest[-1], longest[-1] + "z")}
    assert len(alike) == 2


def test_exit_codes_are_unique_and_clear_of_the_shells() -> None:
    codes = [status.code for reason, status in EXIT_STATUS.items() if status.code]
    assert len(codes) == len(set(codes))
    assert all(code == 1 or 64 <= code < 125 for code in codes)
    assert EXIT_STATUS[Reason.SOURCE_UNAUTHORIZED].code in NON_RETRYABLE_EXIT_CODES
    assert EXIT_STATUS[Reason.SOURCE_RATE_LIMITED].code not in NON_RETRYABLE_EXIT_CODES
    assert 0 not in NON_RETRYABLE_EXIT_CODES


@pytest.mark.parametrize("text", ["short", "x" * 10_000, "\x01" * 10_000, "ü" * 5_000, ""])
def test_a_termination_message_always_fits_and_reads_back(text: str) -> None:
    message = TerminationMessage(Reason.CHECKSUM_MISMATCH, text, retryable=True, bytes=7)
    encoded = encode_termination(message)
    assert len(encoded.encode()) <= MAX_TERMINATION_BYTES
    decoded = decode_termination(encoded)
    assert decoded is not None
    assert (decoded.reason, decoded.retryable, decoded.bytes) == (message.reason, True, 7)
    assert text.startswith(decoded.message.removesuffix("…"))


@pytest.mark.parametrize("text", ["", "null", "boom", '{"reason":"Nope"}', "[" * 9999, "\ud800"])
def test_a_termination_message_that_a_tenant_made_up_is_ignored(text: str) -> None:
    assert decode_termination(text) is None


RECORD = LeaseRecord(
    1,
    "a" * 32,
    "b" * 64,
    Holder(HolderKind.POD, "team-a", "web-0", "uid-1"),
    "2026-01-31T12:00:00Z",
)


def test_a_lease_file_keeps_its_bytes() -> None:
    assert RECORD.canonical_bytes == (
        b'{"holder":{"kind":"pod","namespace":"team-a","node":"","pid":0,"pod":"web-0",'
        b'"pod_uid":"uid-1","uid":-1},"key":"' + b"b" * 64 + b'","lease_id":"' + b"a" * 32 + b'",'
        b'"schema_version":1,"since":"2026-01-31T12:00:00Z"}'
    )
    assert parse_lease_record(RECORD.canonical_bytes) == RECORD
    assert RECORD.file_name == "a" * 32 + ".json"
    assert str(RECORD.holder) == "team-a/web-0"


def test_a_volumes_lease_file_says_so_and_no_other_does() -> None:
    record = msgspec.structs.replace(RECORD, volume="c" * 32)
    expected = RECORD.canonical_bytes[:-1] + b',"volume":"' + b"c" * 32 + b'"}'
    assert record.canonical_bytes == expected
    assert parse_lease_record(expected) == record


@pytest.mark.parametrize(
    "change",
    [
        {"volume": "../x"},
        {"lease_id": "../../x"},
        {"key": "B" * 64},
        {"schema_version": 2},
        {"holder": {}},
        {"x": 1},
    ],
)
def test_a_malformed_lease_file_is_refused(change: dict[str, Any]) -> None:
    document = json.loads(RECORD.canonical_bytes) | change
    with pytest.raises(ManifestError):
        parse_lease_record(json.dumps(document).encode())
