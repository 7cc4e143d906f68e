"""A publication under an odd umask, and on a file system where locks succeed and do nothing."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from sample_producer import PAYLOADS, SampleProducer, fine_tune
from weightlease.errors import WeightLeaseError
from weightlease.reports import StoreStatus
from weightlease.store.local import LocalStore
from weightlease.store.protocol import ProductionMetadata
from weightlease.store.publication import Publication

PAYLOAD = "model.safetensors"
METADATA = ProductionMetadata("manifest-v1", "restorer-v1", {"format": "canonical"})
KEY = fine_tune(0).key


def begin(store: LocalStore) -> Publication:
    begun = store.begin(fine_tune(0), 10**8, timeout=1)
    assert isinstance(begun, Publication)
    return begun


@pytest.mark.parametrize("mask", [0o000, 0o077, 0o777])
def test_published_modes_do_not_depend_on_the_umask(
    store: LocalStore, root: Path, mask: int
) -> None:
    before = os.umask(mask)
    try:
        publication = begin(store)
        SampleProducer().produce(publication)
        publication.finalize(METADATA).close()
    finally:
        os.umask(before)
    for folder in (root / "artifacts" / KEY, root / "assets" / KEY):
        assert folder.stat().st_mode & 0o7777 == 0o555
        assert {path.stat().st_mode & 0o7777 for path in folder.iterdir()} == {0o444}


def test_where_locks_do_nothing_nothing_torn_is_ever_seen(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda fd, operation: None)
    first = begin(store)
    with first.payload(PAYLOAD, len(PAYLOADS[PAYLOAD])) as file:
        file.write(PAYLOADS[PAYLOAD][:50])
        second = begin(store)
        SampleProducer().with_content(9).produce(second)
        assert store.lookup(fine_tune(0)).status is StoreStatus.MISS
        file.write(PAYLOADS[PAYLOAD][50:])
    # the second builder took the first one's staging for what a dead process left
    with pytest.raises(WeightLeaseError):
        first.finalize(METADATA)
    assert store.lookup(fine_tune(0)).status is StoreStatus.MISS
    second.finalize(METADATA).close()
    store.verify(KEY)
    with store.open_artifact(KEY).to_lease() as lease:
        assert bytes(lease.buffer("encoder.weight")) == bytes([9]) * 24
