"""Storage that fails or fills up while it is written: a typed answer and nothing lost."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faults import KEY, finished, publish, reader_sees
from sample_producer import SampleProducer, fine_tune
from system_calls import fail_at, mutations, record, run
from weightlease.errors import FailureCode, WeightLeaseError
from weightlease.names import StorageClass
from weightlease.policy import DomainPolicy
from weightlease.reports import StoreResult, StoreStatus
from weightlease.store.local import LocalStore
from weightlease.store.protocol import FileWriter

NewRoot = Callable[[], Path]
# what a build may answer when one of its system calls fails once
TYPED = {
    FailureCode.DOMAIN_UNAVAILABLE,
    FailureCode.ENOSPC,
    FailureCode.QUARANTINE_FAILED,
    FailureCode.PUBLICATION_FAILED,
}


def publish_and_tell(root: Path, outcome: Path) -> None:
    """Publish once and write down what the store answered."""
    try:
        result = LocalStore(root).get_or_build(SampleProducer())
    except WeightLeaseError as error:
        result = StoreResult(StoreStatus.FAILED, failure=error.failure)
    if result.lease is not None:
        result.lease.close()
    code = result.failure.code if result.failure else ""
    retryable = result.failure.retryable if result.failure else False
    outcome.write_text(f"{result.status} {code} {retryable}")


@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EDQUOT"])
def test_any_one_failing_system_call_is_survived(
    new_root: NewRoot, tmp_path: Path, error: str
) -> None:
    root = new_root()
    calls = mutations(record(lambda: print(publish(root)), tmp_path), root)
    codes = set()
    for call in calls:
        root, outcome = new_root(), tmp_path / "outcome"
        outcome.unlink(missing_ok=True)
        failed = run(
            lambda root=root, outcome=outcome: publish_and_tell(root, outcome),  # type: ignore[misc]
            tmp_path,
            *fail_at(call, error),
        )
        assert failed.status == 0, call
        status, code, retryable = outcome.read_text().split(" ")
        require_consistent(root, status, call)
        if status == StoreStatus.FAILED:
            codes.add(FailureCode(code))
            assert FailureCode(code) in TYPED, call
            assert retryable == str(code != FailureCode.PUBLICATION_FAILED), call
    expected = FailureCode.DOMAIN_UNAVAILABLE if error == "EIO" else FailureCode.ENOSPC
    assert expected in codes
    assert FailureCode.PUBLICATION_FAILED in codes


def require_consistent(root: Path, status: str, call: object) -> None:
    if status == StoreStatus.BUILT:
        assert reader_sees(root) is StoreStatus.HIT, call
    elif status == StoreStatus.FAILED:
        assert reader_sees(root) in {StoreStatus.MISS, StoreStatus.HIT}, call
    else:
        raise AssertionError(f"{status} after {call}")
    assert publish(root) in {StoreStatus.BUILT, StoreStatus.HIT}, call
    assert reader_sees(root) is StoreStatus.HIT, call
    assert LocalStore(root).leftovers() == (), call


# ---- a file system that is really full ----


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 4 MiB."""
    mount = tmp_path / "small"
    mount.mkdir()
    options = ["-t", "tmpfs", "-o", "size=4m,mode=0700"]
    subprocess.run(["mount", *options, "weightlease-test", mount], check=True)
    try:
        yield mount
    finally:
        subprocess.run(["umount", "--lazy", mount], check=True)


def fill(path: Path) -> None:
    """Write until nothing more fits."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


def test_a_disk_that_fills_up_fails_typed_and_keeps_what_it_had(small_tmpfs: Path) -> None:
    root = small_tmpfs / "domain"
    store = LocalStore(root, DomainPolicy(storage_class=StorageClass.MEMORY))
    finished(store.get_or_build(SampleProducer(total_bytes=100_000)))
    filler = small_tmpfs / "filler"

    def fill_up(writer: FileWriter) -> None:
        fill(filler)

    late = SampleProducer(
        fine_tune(1), assets={"big": bytes(3_000_000)}, total_bytes=3_200_000, during=fill_up
    )
    full = store.get_or_build(late).failure
    assert full is not None
    assert (full.code, full.retryable) == (FailureCode.ENOSPC, True)
    assert list((root / "tmp").iterdir()) == []
    finished(store.lookup(fine_tune(0)))
    store.verify(KEY)
    filler.unlink()
    finished(store.get_or_build(SampleProducer(fine_tune(1), total_bytes=100_000)))


def test_what_cannot_fit_is_refused_before_it_is_produced(small_tmpfs: Path) -> None:
    store = LocalStore(small_tmpfs / "domain", DomainPolicy(storage_class=StorageClass.MEMORY))

    def never(writer: FileWriter) -> None:
        raise AssertionError("produced")

    refused = store.get_or_build(SampleProducer(total_bytes=5_000_000, during=never)).failure
    assert refused is not None
    assert (refused.code, refused.retryable) == (FailureCode.INSUFFICIENT_CAPACITY, True)
    assert refused.details["needed_bytes"] == 5_000_000
    assert 0 < refused.details["available_bytes"] < 4_200_000


def test_cleanup_works_on_a_full_disk(small_tmpfs: Path) -> None:
    store = LocalStore(small_tmpfs / "domain", DomainPolicy(storage_class=StorageClass.MEMORY))
    finished(store.get_or_build(SampleProducer(total_bytes=100_000)))
    fill(small_tmpfs / "filler")
    assert store.cleanup(KEY).freed_bytes > 0
    assert store.lookup(fine_tune(0)).status is StoreStatus.MISS
