"""Lease files, and what cleanup does and does not touch."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from descriptors import open_descriptors
from sample_producer import SampleProducer, fine_tune
from weightlease.errors import FailureCode
from weightlease.lease_record import Holder, HolderKind, LeaseRecord
from weightlease.reports import CleanupStatus, StoreStatus
from weightlease.store.failpoints import Point, Term, parse_terms
from weightlease.store.leases import LeaseDirectory
from weightlease.store.local import LocalStore
from weightlease.store.publication import Publication


def a_record(key: str, number: int = 1) -> LeaseRecord:
    holder = Holder(HolderKind.POD, namespace="team-a", pod="server-0", node="n1", uid=1000)
    return LeaseRecord(1, f"{number:032x}", key, holder, "2026-01-31T12:00:00Z")


# ---- lease files ----


def test_a_lease_is_active_while_any_copy_of_its_descriptor_is_open(
    store: LocalStore, root: Path, key: str
) -> None:
    record = a_record(key)
    store.leases.grant(record)
    assert store.leases.scan() == [(record, False)]
    fd = store.leases.open_locked(record)
    copy = os.dup(fd)
    os.close(fd)
    assert store.leases.scan() == [(record, True)]
    assert store.leases.holders(key) == (record,)
    assert store.leases.holders(fine_tune(1).key) == ()
    assert not store.leases.remove_if_ended(record.lease_id)
    os.close(copy)
    assert store.leases.scan() == [(record, False)]
    assert store.leases.remove_if_ended(record.lease_id)
    assert store.leases.remove_if_ended(record.lease_id)
    assert os.listdir(root / "leases") == []


def test_a_volumes_lease_is_active_without_a_lock_until_it_is_removed(
    store: LocalStore, root: Path, key: str
) -> None:
    record = msgspec.structs.replace(a_record(key), volume="a" * 32)
    store.leases.grant(record)
    assert store.leases.scan() == [(record, True)]
    assert store.leases.holders(key) == (record,)
    assert not store.leases.remove_if_ended(record.lease_id)
    assert store.cleanup(key).status is CleanupStatus.ACTIVE_LEASE
    store.leases.remove_volume(record.lease_id)
    store.leases.remove_volume(record.lease_id)
    assert os.listdir(root / "leases") == []
    assert store.cleanup(key).status is CleanupStatus.REMOVED


def test_a_lease_file_is_read_only_and_its_descriptor_too(
    store: LocalStore, root: Path, key: str
) -> None:
    record = a_record(key)
    store.leases.grant(record)
    path = root / "leases" / record.file_name
    assert path.read_bytes() == record.canonical_bytes
    assert path.stat().st_mode & 0o777 == 0o444
    assert path.stat().st_nlink == 1
    fd = store.leases.open_locked(record)
    assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    os.close(fd)


def test_a_lease_file_opens_below_another_mount(
    store: LocalStore, root: Path, key: str, tmp_path: Path
) -> None:
    record = a_record(key)
    store.leases.grant(record)
    (tmp_path / "mount").symlink_to(root)
    fd = store.leases.open_locked(record, tmp_path / "mount")
    assert store.leases.holders(key) == (record,)
    os.close(fd)


def test_a_lease_id_is_granted_once(store: LocalStore, root: Path, key: str) -> None:
    store.leases.grant(a_record(key))
    with pytest.raises(FileExistsError):
        store.leases.grant(a_record(key))
    assert len(os.listdir(root / "leases")) == 1


def test_a_lease_that_was_removed_does_not_open(store: LocalStore, key: str) -> None:
    store.leases.grant(a_record(key))
    store.leases.remove_if_ended(a_record(key).lease_id)
    with pytest.raises(FileNotFoundError):
        store.leases.open_locked(a_record(key))


def test_a_lease_that_is_removed_while_it_opens_is_not_given_out(
    store: LocalStore, root: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = a_record(key)
    store.leases.grant(record)
    real = fcntl.flock

    def removed_first(fd: int, operation: int) -> None:
        (root / "leases" / record.file_name).unlink()
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    before = open_descriptors()
    with pytest.raises(FileNotFoundError):
        store.leases.open_locked(record)
    assert open_descriptors() == before


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b'{"schema_version": 1}', b"[" * 10_000, b" " * 20_000],
)
def test_a_malformed_lease_file_is_reported_and_harms_nothing(
    store: LocalStore, root: Path, key: str, content: bytes
) -> None:
    path = root / "leases" / f"{5:032x}.json"
    path.write_bytes(content)
    path.chmod(0o444)
    store.leases.grant(a_record(key))
    assert [record for record, _ in store.leases.scan()] == [a_record(key)]
    assert store.leases.malformed() == [path.name]
    assert store.leases.remove_if_ended(path.stem)
    assert store.leases.malformed() == []


def test_a_lease_file_under_a_foreign_name_or_mode_is_malformed(
    store: LocalStore, root: Path, key: str
) -> None:
    record = a_record(key)
    for name, mode in ((f"{9:032x}.json", 0o444), (record.file_name, 0o666)):
        (root / "leases" / name).write_bytes(record.canonical_bytes)
        (root / "leases" / name).chmod(mode)
    assert store.leases.scan() == []
    assert len(store.leases.malformed()) == 2


def test_a_directory_of_leases_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert LeaseDirectory(tmp_path).scan() == []


def test_a_lease_id_cannot_leave_the_directory(store: LocalStore, root: Path) -> None:
    (root / "victim.json").write_bytes(b"")
    assert store.leases.remove_if_ended("../victim")
    assert (root / "victim.json").exists()


# ---- cleanup ----


def test_cleanup_names_who_holds_an_artifact_by_a_lease_file_alone(
    store: LocalStore, key: str
) -> None:
    record = a_record(key)
    store.leases.grant(record)
    fd = store.leases.open_locked(record)
    blocked = store.cleanup(key)
    assert (blocked.status, blocked.holders) == (
        CleanupStatus.ACTIVE_LEASE,
        ("team-a/server-0",),
    )
    os.close(fd)
    assert store.cleanup(key).status is CleanupStatus.REMOVED


def test_cleanup_removes_every_trace_but_lock_files(
    store: LocalStore, root: Path, key: str
) -> None:
    (root / "deny" / f"{key}.json").write_bytes(b"{}")
    (root / "tmp" / f"{key}.1.x").mkdir()
    assert store.cleanup(key).status is CleanupStatus.REMOVED
    left = [path for path in root.rglob("*") if key in path.name]
    assert {path.parent.name for path in left} == {"locks"}


@pytest.mark.parametrize(
    "point", [Point.BEFORE_TOMBSTONE, Point.AFTER_TOMBSTONE, Point.BEFORE_DENY_REMOVAL]
)
def test_a_cleanup_that_breaks_is_finished_by_the_next(
    store: LocalStore, key: str, fail_at: Callable[..., None], point: Point
) -> None:
    fail_at(point)
    broken = store.cleanup(key)
    assert broken.status is CleanupStatus.FAILED
    assert broken.failure is not None
    assert (broken.failure.code, broken.failure.retryable) == (FailureCode.QUARANTINE_FAILED, True)
    fail_at()
    store.cleanup(key)
    assert store.inspect().inventory == ()
    assert store.leftovers() == ()


def test_the_next_builder_removes_what_a_broken_cleanup_left(
    store: LocalStore, root: Path, key: str, fail_at: Callable[..., None]
) -> None:
    fail_at(Point.AFTER_TOMBSTONE)
    store.cleanup(key)
    fail_at()
    assert store.leftovers() == (key,)
    rebuilt = store.get_or_build(SampleProducer())
    assert rebuilt.status is StoreStatus.BUILT
    assert rebuilt.lease is not None
    rebuilt.lease.close()
    assert os.listdir(root / "quarantine") == []


def test_a_move_that_a_crash_cut_off_is_completed(store: LocalStore, root: Path, key: str) -> None:
    name = f"{key}.validation_failure.{'0' * 32}"
    (root / "artifacts" / key).rename(root / "quarantine" / name)
    (root / "quarantine" / name).chmod(0o1755)
    begun = store.begin(fine_tune(0), 100, timeout=1)
    assert isinstance(begun, Publication)
    begun.abort()
    assert (root / "quarantine" / name).stat().st_mode & 0o7777 == 0o555


def test_a_rename_that_fails_leaves_a_readable_artifact(
    store: LocalStore, root: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(source: str, destination: str) -> None:
        raise OSError(errno.EIO, "injected")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", broken)
        assert store.cleanup(key).status is CleanupStatus.FAILED
    assert (root / "artifacts" / key).stat().st_mode & 0o7777 == 0o555
    lease = store.lookup(fine_tune(0)).lease
    assert lease is not None
    lease.close()


def test_a_quarantined_artifact_goes_by_its_name(store: LocalStore, root: Path, key: str) -> None:
    name = f"{key}.validation_failure.{'0' * 32}"
    (root / "artifacts" / key).rename(root / "quarantine" / name)
    assert store.cleanup_quarantined(name).status is CleanupStatus.REMOVED
    assert store.cleanup_quarantined(name).status is CleanupStatus.ABSENT


@pytest.mark.parametrize("name", ["", "..", "../artifacts/x", "x" * 64])
def test_a_name_that_is_no_quarantined_artifact_is_refused(store: LocalStore, name: str) -> None:
    refused = store.cleanup_quarantined(name).failure
    assert refused is not None
    assert refused.code is FailureCode.INVALID_CONFIG


@pytest.mark.parametrize("key", ["", "../x", "Z" * 64])
def test_cleaning_up_what_is_no_key_is_refused(store: LocalStore, key: str) -> None:
    refused = store.cleanup(key).failure
    assert refused is not None
    assert refused.code is FailureCode.INVALID_CONFIG


# ---- failpoints ----


def test_failpoints_are_off_unless_they_are_named() -> None:
    assert parse_terms("") == {}
    assert parse_terms("before-rename=kill, after-rename=error") == {
        Point.BEFORE_RENAME: Term.KILL,
        Point.AFTER_RENAME: Term.ERROR,
    }


@pytest.mark.parametrize("text", ["no-such-point=kill", "before-rename=maybe", "before-rename"])
def test_a_failpoint_that_does_not_exist_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_terms(text)
