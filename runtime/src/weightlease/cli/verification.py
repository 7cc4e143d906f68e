"""Reading every leased byte and comparing it with what the manifest says of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from weightlease.canonical import sha256_hex
from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.lease import WeightLease
from weightlease.manifest import content_sha256

_CHUNK_BYTES = 4 * 1024 * 1024


def verify_lease(lease: WeightLease, progress: Callable[[int, int], None]) -> int:
    """Check manifest, payload files and assets; returns how many bytes were read.

    `progress` is called with the bytes done since the last call and the total.

    Raises:
        WeightLeaseError: checksum_mismatch, naming the first thing that differs.

    """
    manifest = lease.manifest
    if sha256_hex(manifest.canonical_bytes) != lease.provenance.manifest_sha256:
        raise _mismatch(lease, "the manifest is not the published one")
    if content_sha256(manifest.tensors) != manifest.artifact_content_sha256:
        raise _mismatch(lease, "the manifest's tensors do not have its content digest")
    expected = {entry.file_name: (entry.size, entry.sha256) for entry in manifest.files}
    expected |= {asset.path: (asset.size, asset.sha256) for asset in manifest.assets}
    total = sum(size for size, _ in expected.values())
    paths = lease.files()
    for name, (_, sha256) in expected.items():
        digest = hashlib.sha256()
        for chunk in _chunks(paths[name]):
            digest.update(chunk)
            progress(len(chunk), total)
        if digest.hexdigest() != sha256:
            raise _mismatch(lease, f"{name!r} has the sha256 {digest.hexdigest()}, not {sha256}")
    return total


def _chunks(path: str) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            yield buffer[:count]


def _mismatch(lease: WeightLease, problem: str) -> WeightLeaseError:
    return WeightLeaseError.of(
        Stage.VALIDATION, FailureCode.CHECKSUM_MISMATCH, f"artifact {lease.key}: {problem}"
    )
