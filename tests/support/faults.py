"""One small publication, and what a reader makes of a domain after it was disturbed."""

from __future__ import annotations

from pathlib import Path

from sample_producer import SampleProducer, fine_tune
from weightlease.reports import StoreResult, StoreStatus
from weightlease.store.local import LocalStore

KEY = fine_tune(0).key


def publish(root: Path) -> StoreStatus:
    """Publish the sample artifact, or raise with what the store said."""
    return finished(LocalStore(root).get_or_build(SampleProducer()))


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
