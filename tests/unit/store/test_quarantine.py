"""Quarantine is listed with reason and age, and expires by age alone."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sample_producer import SampleProducer, fine_tune
from weightlease.errors import FailureCode, WeightLeaseError
from weightlease.locks import Deadline, FileLock
from weightlease.reports import CleanupStatus, StoreStatus
from weightlease.store.local import LocalStore
from weightlease.store.quarantine import listed


def quarantine_one(store: LocalStore, root: Path, key: str) -> None:
    """Damage the artifact and let a builder move it out of its way."""
    manifest = root / "artifacts" / key / "manifest.json"
    manifest.chmod(0o600)
    rebuilt = store.get_or_build(SampleProducer())
    assert rebuilt.status is StoreStatus.BUILT
    assert rebuilt.lease is not None
    rebuilt.lease.close()


def test_an_entry_is_listed_with_key_reason_size_and_age(
    store: LocalStore, root: Path, key: str
) -> None:
    assert store.quarantined() == ()
    quarantine_one(store, root, key)
    (entry,) = store.quarantined()
    assert (entry.artifact_key, entry.reason) == (key, "validation_failure")
    assert entry.size_bytes > 0
    assert 0 <= entry.age_seconds < 600
    (later,) = listed(store.domain, time.time() + 1000)
    assert later.age_seconds >= 1000


def test_expiry_removes_what_is_old_and_keeps_what_is_young_and_what_is_published(
    store: LocalStore, root: Path, key: str
) -> None:
    quarantine_one(store, root, key)
    assert store.expire_quarantine(3600) == ()
    assert len(store.quarantined()) == 1
    (expired,) = store.expire_quarantine(0)
    assert expired.result.status is CleanupStatus.REMOVED
    assert expired.result.freed_bytes > 0
    assert store.quarantined() == ()
    found = store.lookup(fine_tune(0))
    assert found.status is StoreStatus.HIT
    assert found.lease is not None
    found.lease.close()


def test_an_entry_whose_key_is_being_built_waits(store: LocalStore, root: Path, key: str) -> None:
    quarantine_one(store, root, key)
    path = store.domain.paths.build_lock(key)
    with FileLock.acquire(path, exclusive=True, deadline=Deadline(1)):
        (left,) = store.expire_quarantine(0)
        assert left.result.status is CleanupStatus.ACTIVE_BUILD
    assert len(store.quarantined()) == 1


def test_a_foreign_name_in_quarantine_is_neither_listed_nor_removed(
    store: LocalStore, root: Path
) -> None:
    os.mkdir(root / "quarantine" / "notes")
    assert store.quarantined() == ()
    assert store.expire_quarantine(0) == ()
    assert (root / "quarantine" / "notes").is_dir()


@pytest.mark.parametrize("age", [-1.0, float("nan")])
def test_an_age_that_makes_no_sense_is_refused(store: LocalStore, age: float) -> None:
    with pytest.raises(WeightLeaseError) as caught:
        store.expire_quarantine(age)
    assert caught.value.failure.code is FailureCode.INVALID_CONFIG
