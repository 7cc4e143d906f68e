"""flock with a deadline, across fork and hand-over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from descriptors import open_descriptors
from weightlease.errors import FailureCode, WeightLeaseError
from weightlease.locks import Deadline, FileLock, is_locked


class FakeTime:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def deadline(self, seconds: float) -> Deadline:
        return Deadline(seconds, self.clock, self.sleep)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "lock")


def test_readers_share_and_a_writer_is_alone(path: str) -> None:
    with FileLock.acquire(path, exclusive=False, deadline=Deadline(0)):
        second = FileLock.try_acquire(path, exclusive=False)
        assert second is not None
        assert FileLock.try_acquire(path, exclusive=True) is None
        second.close()
    alone = FileLock.try_acquire(path, exclusive=True)
    assert alone is not None
    assert FileLock.try_acquire(path, exclusive=False) is None
    alone.close()


def test_waiting_ends_at_the_deadline_typed_and_retryable(path: str) -> None:
    time = FakeTime()
    with FileLock.acquire(path, exclusive=True, deadline=Deadline(0)):
        before = open_descriptors()
        with pytest.raises(WeightLeaseError) as caught:
            FileLock.acquire(path, exclusive=False, deadline=time.deadline(1.0))
        assert open_descriptors() == before
    assert caught.value.failure.code is FailureCode.ACTIVE_BUILD_TIMEOUT
    assert caught.value.failure.retryable
    assert time.now == pytest.approx(101.0)


def test_a_lock_that_becomes_free_before_the_deadline_is_taken(path: str) -> None:
    holder = FileLock.acquire(path, exclusive=True, deadline=Deadline(0))
    time = FakeTime()

    def release_then_sleep(seconds: float) -> None:
        time.sleep(seconds)
        if time.now > 100.5:
            holder.close()

    deadline = Deadline(60, time.clock, release_then_sleep)
    FileLock.acquire(path, exclusive=True, deadline=deadline).close()
    assert time.now < 101


def test_a_forked_childs_close_leaves_the_parents_lock(path: str) -> None:
    lock = FileLock.acquire(path, exclusive=True, deadline=Deadline(0))
    child = os.fork()
    if child == 0:
        lock.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert is_locked(path)
    lock.close()
    assert not is_locked(path)


def test_a_handed_over_lock_lasts_until_its_last_copy_closes(path: str) -> None:
    lock = FileLock.acquire(path, exclusive=False, deadline=Deadline(0))
    fd = lock.hand_over()
    copy = os.dup(fd)
    lock.close()
    os.close(fd)
    assert is_locked(path)
    os.close(copy)
    assert not is_locked(path)
    with pytest.raises(ValueError, match="closed"):
        lock.hand_over()


def test_a_lock_that_nobody_refers_to_is_free(path: str) -> None:
    FileLock.acquire(path, exclusive=True, deadline=Deadline(0))
    assert not is_locked(path)


def test_asking_never_creates_the_file(path: str) -> None:
    assert not is_locked(path)
    assert not os.path.exists(path)


def test_a_link_in_the_locks_place_is_refused(path: str, tmp_path: Path) -> None:
    os.symlink(tmp_path / "elsewhere", path)
    with pytest.raises(OSError, match="symbolic links"):
        FileLock.try_acquire(path, exclusive=True)


def test_a_lock_file_is_private(path: str) -> None:
    FileLock.acquire(path, exclusive=True, deadline=Deadline(0)).close()
    assert os.stat(path).st_mode & 0o777 == 0o600
