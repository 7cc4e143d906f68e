"""The two system calls of this driver: mount(2) and umount2(2)."""

from __future__ import annotations

import ctypes
import os

_MS_RDONLY = 0x1
_MS_NOSUID = 0x2
_MS_NODEV = 0x4
_MS_NOEXEC = 0x8
_MS_REMOUNT = 0x20
_MS_BIND = 0x1000
_MNT_DETACH = 0x2
_READ_ONLY = _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_ulong,
    ctypes.c_char_p,
)
_libc.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)


def bind(source: int, target: int) -> None:
    """Show the folder behind one descriptor at the folder behind another.

    Raises:
        OSError: the kernel refuses.

    """
    _mount(_path(source), _path(target), _MS_BIND)


def make_read_only(target: int) -> None:
    """Make the mount whose root is behind a descriptor read-only, without devices or programs.

    Raises:
        OSError: the kernel refuses.

    """
    _mount(None, _path(target), _MS_REMOUNT | _MS_BIND | _READ_ONLY)


def detach(target: int) -> None:
    """Take the mount whose root is behind a descriptor away, with all that is mounted below.

    Whoever has files open there keeps them.

    Raises:
        OSError: the kernel refuses.

    """
    if _libc.umount2(_path(target), _MNT_DETACH):
        _fail("umount2")


def mount_id(descriptor: int) -> int:
    """Which mount a descriptor lies in."""
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
        for line in file:
            if line.startswith("mnt_id:"):
                return int(line.removeprefix("mnt_id:"))
    raise OSError(f"fdinfo of descriptor {descriptor} names no mount")


def _path(descriptor: int) -> bytes:
    # No name is resolved again, so nothing can be put in its place.
    return f"/proc/self/fd/{descriptor}".encode()


def _mount(source: bytes | None, target: bytes, flags: int) -> None:
    if _libc.mount(source, target, None, flags, None):
        _fail("mount")


def _fail(call: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, f"{call}: {os.strerror(number)}")
