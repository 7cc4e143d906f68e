"""Descriptors for consumers: opened anew for each lease, below the read-only mount of the store.

Each lease gets open descriptions of its own, so that no consumer shares a file offset, a read-ahead
mode or a lock with another. A descriptor opened through a read-only mount can't be reopened for
writing, not even by root. Every descriptor is asked by fstatvfs before it is sent: a writable one
never leaves the agent. Without a read-only mount (bare hosts) that promise holds against every uid
but root's and the agent's own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import structlog

from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.filesystem import open_file

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class FileMark:
    """Which file was validated: a path is only trusted while it leads to this one."""

    device: int
    inode: int
    size: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileMark:
        return cls(status.st_dev, status.st_ino, status.st_size)


@dataclass(frozen=True)
class Export:
    """One root and, where there is one, its read-only mount."""

    root: Path
    mount: Path | None

    def open(self, path: Path, mark: FileMark) -> int:
        """A read-only descriptor of the marked file; the caller closes it.

        Raises:
            WeightLeaseError: domain_unavailable when the mount is writable, or the file another.

        """
        visible = self.visible(path)
        try:
            descriptor = open_file(str(visible))
        except OSError as error:
            raise _unavailable(f"{visible} can't be opened: {error.strerror}") from error
        try:
            self.require_read_only(descriptor, visible)
            _require_mark(descriptor, visible, mark)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def visible(self, path: Path) -> Path:
        """The same path below the read-only mount, where there is one."""
        return path if self.mount is None else self.mount / path.relative_to(self.root)

    def check(self) -> None:
        """Raises domain_unavailable unless the mount is there and read-only."""
        if self.mount is None:
            return
        try:
            flags = os.statvfs(self.mount).f_flag
        except OSError as error:
            raise _unavailable(f"export {self.mount} is unusable: {error.strerror}") from error
        if not flags & os.ST_RDONLY:
            raise _unavailable(f"export {self.mount} is writable; mount it recursively read-only")

    def require_read_only(self, descriptor: int, visible: Path) -> None:
        """Raises domain_unavailable for a descriptor of a writable mount: it must not be sent."""
        if self.mount is not None and not os.fstatvfs(descriptor).f_flag & os.ST_RDONLY:
            log.critical("export is writable, refusing to hand out descriptors", path=str(visible))
            raise _unavailable(f"export {self.mount} is writable; mount it recursively read-only")


def _require_mark(descriptor: int, visible: Path, mark: FileMark) -> None:
    found = os.fstat(descriptor)
    if (found.st_ino, found.st_dev, found.st_size) != (mark.inode, mark.device, mark.size):
        raise _unavailable(f"{visible} is not the file that was validated")


def _unavailable(message: str) -> WeightLeaseError:
    return WeightLeaseError.of(
        Stage.DOMAIN, FailureCode.DOMAIN_UNAVAILABLE, message, retryable=True
    )
