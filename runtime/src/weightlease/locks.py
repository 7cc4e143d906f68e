"""Advisory locks on files whose inode never changes: flock, polled up to a deadline.

A lock belongs to an open file description. Rules that follow from it:

* a forked child shares the description, so its copy closes without LOCK_UN, which would unlock
  the parent too; the pid that created the lock is recorded for that;
* a descriptor that was handed to another owner is closed by that owner alone, again without
  LOCK_UN: the lock lasts until the last copy closes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from weightlease.errors import FailureCode, Stage, WeightLeaseError

POLL_SECONDS = 0.05
_BUSY = {errno.EACCES, errno.EAGAIN}
_LOCK_MODE = 0o600


class Deadline:
    """A point on a monotonic clock; an absent `seconds` never passes."""

    def __init__(
        self,
        seconds: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._end = None if seconds is None else clock() + seconds

    def wait(self) -> bool:
        """Sleep for one poll; False when the deadline has passed instead."""
        if self._end is None:
            self._sleep(POLL_SECONDS)
            return True
        remaining = self._end - self._clock()
        if remaining <= 0:
            return False
        self._sleep(min(POLL_SECONDS, remaining))
        return True


class FileLock:
    """One held flock."""

    def __init__(self, fd: int, path: str) -> None:
        self.path = path
        self._fd = fd
        self._pid = os.getpid()

    @classmethod
    def acquire(
        cls, path: str, *, exclusive: bool, deadline: Deadline, stage: Stage = Stage.LOOKUP
    ) -> FileLock:
        """Take the lock on `path`, creating the file; polls until `deadline`.

        Raises:
            WeightLeaseError: active_build_timeout when the deadline passes first.
            OSError: the file cannot be opened or locked at all.

        """
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, _LOCK_MODE)
        try:
            held = lock_until(fd, exclusive=exclusive, deadline=deadline)
        except BaseException:
            os.close(fd)
            raise
        if held:
            return cls(fd, path)
        os.close(fd)
        raise WeightLeaseError.of(
            stage,
            FailureCode.ACTIVE_BUILD_TIMEOUT,
            f"timed out waiting for lock {os.path.basename(path)}",
            retryable=True,
        )

    @classmethod
    def try_acquire(cls, path: str, *, exclusive: bool) -> FileLock | None:
        """Take the lock on `path` without waiting; None when somebody else has it."""
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, _LOCK_MODE)
        try:
            held = lock_descriptor(fd, exclusive=exclusive)
        except BaseException:
            os.close(fd)
            raise
        if not held:
            os.close(fd)
            return None
        return cls(fd, path)

    def hand_over(self) -> int:
        """The locked descriptor, now the caller's to close; this object holds nothing any more."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            raise ValueError(f"lock {self.path} is already closed")
        return fd

    def close(self) -> None:
        """Release the lock; in a forked child only this process's copy of it. Never raises."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        # Whatever these calls answer, the descriptor is gone afterwards and the lock with it.
        if os.getpid() == self._pid:
            with suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
        with suppress(OSError):
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __del__(self) -> None:
        # A lock nobody refers to any more is over; the descriptor must not outlive it.
        self.close()


class HeldLocks:
    """Several held locks, released together and last taken first."""

    def __init__(self, *locks: FileLock) -> None:
        self._locks = locks

    def close(self) -> None:
        """Release them all; idempotent, never raises."""
        for lock in reversed(self._locks):
            lock.close()


def is_locked(path: str) -> bool:
    """Whether anyone holds a lock on `path` at this instant; never creates the file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        return not lock_descriptor(fd, exclusive=True)
    finally:
        os.close(fd)


def lock_descriptor(fd: int, *, exclusive: bool) -> bool:
    """Try to lock an open descriptor; False when somebody else's lock is in the way."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise
    return True


def lock_until(fd: int, *, exclusive: bool, deadline: Deadline) -> bool:
    """Lock an open descriptor, polling; False when `deadline` passed first."""
    while not lock_descriptor(fd, exclusive=exclusive):
        if not deadline.wait():
            return False
    return True
