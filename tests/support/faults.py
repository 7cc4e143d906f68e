"""Two publications, and what a reader makes of a domain after it was disturbed."""

from __future__ import annotations

from pathlib import Path

from sample_producer import SampleProducer, fine_tune
from small_artifact import safetensors_bytes
from weightlease.reports import StoreResult, StoreStatus
from weightlease.store.local import LocalStore
from weightlease.store.staged_file import SMALL_FILE_BYTES

KEY = fine_tune(0).key
SMALL = SampleProducer()
# Written and hashed by threads, and synced behind the back of what follows.
LARGE = SampleProducer(
    payloads={
        f"{name}.safetensors": safetensors_bytes({name: ("U8", (size,), bytes(size))})
        for name, size in zip(
            "abcd", range(SMALL_FILE_BYTES + 1, SMALL_FILE_BYTES + 5), strict=True
        )
    },
    assets={"config.json": b"{}"},
    step=SMALL_FILE_BYTES // 4,
)


def publish(root: Path, producer: SampleProducer = SMALL) -> StoreStatus:
    """Publish the sample artifact, or raise with what the store said."""
    return finished(LocalStore(root).get_or_build(producer))


def finished(result: StoreResult) -> StoreStatus:
    assert result.lease is not None, result
    result.lease.close()
    return result.status


def reader_sees(root: Path) -> StoreStatus:
    """What a lookup says; a hit is read to its last byte."""
    store = LocalStore(root)
    found = store.lookup(fine_tune(0))
    if found.lease is not None:
        found.lease.close()
        store.verify(KEY)
    return found.status
