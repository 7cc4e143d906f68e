"""Mounting a volume: the pod's folder, and over two empty folders in it the artifact's.

    <target>                       ← <volumes>/<handle>/pod              socket, links
    <target>/.content/payloads     ← <store>/<class>/<ns>/artifacts/<key>
    <target>/.content/assets       ← <store>/<class>/<ns>/assets/<key>

Every path is walked part by part from a trusted root without following a link: the agent owns what
lies below `volumes` and the store, and is not trusted with more than it could read anyway.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from weightlease_csi_driver import kernel
from weightlease_csi_driver.checks import MOUNT_NAME, Target

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# More than these were never stacked by a driver that died between mount and answer.
_MAX_STACKED = 16


@dataclass(frozen=True)
class Bind:
    """One folder to show: below which root it lies, and where below the target it appears."""

    root: str
    source: tuple[str, ...]
    place: tuple[str, ...] = ()


class Mounter(Protocol):
    """Shows and hides volumes."""

    def show(self, target: Target, binds: Sequence[Bind]) -> None:
        """Mount; what is mounted so already is left alone. Raises OSError."""

    def hide(self, target: Target) -> None:
        """Unmount and remove the folder; one that is gone is no error. Raises OSError."""

    def exists(self, target: Target) -> bool:
        """Whether the target's folder is there."""


class HostMounter:
    """The real one; `kubelet` is the kubelet's folder."""

    def __init__(self, kubelet: str) -> None:
        self._kubelet = kubelet

    def show(self, target: Target, binds: Sequence[Bind]) -> None:
        with _walk(self._kubelet, target.parts) as parent:
            with contextlib.suppress(FileExistsError):
                os.mkdir(MOUNT_NAME, 0o750, dir_fd=parent)
            if self._shows(parent, binds):
                return
            # A driver that died half-way, or a folder that the agent had to make anew.
            _detach_all(parent)
            try:
                for bind in binds:
                    _bind(parent, bind)
            except BaseException:
                _detach_all(parent)
                raise

    def hide(self, target: Target) -> None:
        try:
            with _walk(self._kubelet, target.parts) as parent:
                _detach_all(parent)
                os.rmdir(MOUNT_NAME, dir_fd=parent)
        except FileNotFoundError:
            return

    def exists(self, target: Target) -> bool:
        try:
            with _walk(self._kubelet, (*target.parts, MOUNT_NAME)):
                return True
        except FileNotFoundError:
            return False

    def _shows(self, parent: int, binds: Sequence[Bind]) -> bool:
        try:
            return all(_is_bound(parent, bind) for bind in binds)
        except FileNotFoundError:
            return False


def _bind(parent: int, bind: Bind) -> None:
    place = (MOUNT_NAME, *bind.place)
    with _walk(bind.root, bind.source) as source, _below(parent, place) as folder:
        kernel.bind(source, folder)
    # Opened anew: what it was before the mount lies beneath it now.
    with _below(parent, place) as folder:
        kernel.make_read_only(folder)


def _is_bound(parent: int, bind: Bind) -> bool:
    place = (MOUNT_NAME, *bind.place)
    with (
        _walk(bind.root, bind.source) as source,
        _below(parent, place[:-1]) as above,
        _below(parent, place) as folder,
    ):
        return (
            os.path.sameopenfile(source, folder)
            and kernel.mount_id(folder) != kernel.mount_id(above)
            and bool(os.fstatvfs(folder).f_flag & os.ST_RDONLY)
        )


def _detach_all(parent: int) -> None:
    for _ in range(_MAX_STACKED):
        with _below(parent, (MOUNT_NAME,)) as folder:
            if kernel.mount_id(folder) == kernel.mount_id(parent):
                return
            kernel.detach(folder)
    raise OSError(errno.EBUSY, f"more than {_MAX_STACKED} mounts lie on one another")


@contextmanager
def _walk(root: str, parts: Sequence[str]) -> Iterator[int]:
    """A descriptor of the folder at `parts` below `root`."""
    descriptor = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _below(descriptor, parts) as found:
            yield found
    finally:
        os.close(descriptor)


@contextmanager
def _below(descriptor: int, parts: Sequence[str]) -> Iterator[int]:
    """The same below a descriptor, which stays open."""
    found = os.dup(descriptor)
    try:
        for part in parts:
            following = os.open(part, _FOLDER, dir_fd=found)
            os.close(found)
            found = following
        yield found
    finally:
        os.close(found)
