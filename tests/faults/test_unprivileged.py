"""A store of an ordinary user: tmpfs lets root alone rename a read-only directory."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from faults import KEY, finished
from sample_producer import SampleProducer, fine_tune
from store_conformance import flip_last_byte
from weightlease.errors import FailureCode
from weightlease.filesystem import remove_tree
from weightlease.names import AGENT_UID, StorageClass
from weightlease.policy import DomainPolicy, Validation
from weightlease.reports import CleanupStatus, StoreStatus
from weightlease.store.local import LocalStore


@pytest.fixture
def root() -> Path:
    return Path("/dev/shm") / f"weightlease-unprivileged-{os.getpid()}"


def as_ordinary_user(action: Callable[[], None]) -> int:
    """Run `action` in a forked child without privileges; returns its exit code."""
    child = os.fork()
    if child == 0:
        status = 70
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(AGENT_UID)
                os.setuid(AGENT_UID)
            action()
            status = 0
        except BaseException:  # noqa: BLE001 - the child must not return into the test run
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_an_artifact_is_built_denied_quarantined_rebuilt_and_removed(root: Path) -> None:
    def live() -> None:
        store = LocalStore(root, DomainPolicy(storage_class=StorageClass.MEMORY))
        finished(store.get_or_build(SampleProducer()))
        with pytest.raises(PermissionError):
            os.rename(root / "artifacts" / KEY, root / "quarantine" / KEY)
        flip_last_byte(root / "artifacts" / KEY / "model.safetensors")
        found = store.lookup(fine_tune(0), validation=Validation.FULL_CHECKSUM).failure
        assert found is not None
        assert found.code is FailureCode.CHECKSUM_MISMATCH
        assert finished(store.get_or_build(SampleProducer())) is StoreStatus.BUILT
        (quarantined,) = os.listdir(root / "quarantine")
        assert store.cleanup_quarantined(quarantined).status is CleanupStatus.REMOVED
        assert store.cleanup(KEY).status is CleanupStatus.REMOVED
        assert store.leftovers() == ()

    try:
        assert as_ordinary_user(live) == 0
    finally:
        remove_tree(str(root))
