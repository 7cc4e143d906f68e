"""What the kernel says and hands over at a Unix socket: the peer's ids, and descriptors it sent."""

from __future__ import annotations

import array
import socket
import struct
from collections.abc import Iterable
from typing import NamedTuple

# struct ucred: pid_t is signed, uid_t and gid_t are not
_UCRED = struct.Struct("iII")
_INT_BYTES = array.array("i").itemsize


class Credentials(NamedTuple):
    """SO_PEERCRED of a peer; pid is 0 for a process of another PID namespace."""

    pid: int
    uid: int


def credentials_of(connection: socket.socket) -> Credentials:
    """Who is at the other end of a connected Unix socket.

    Raises:
        OSError: the socket can't tell.

    """
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(raw)
    return Credentials(pid, uid)


def descriptors_room(count: int) -> int:
    """Ancillary bytes that `recvmsg` needs for `count` descriptors."""
    return socket.CMSG_SPACE(count * _INT_BYTES)


def attached_descriptors(ancillary: Iterable[tuple[int, int, bytes]]) -> array.array[int]:
    """The descriptors that came with one `recvmsg`, the caller's to close."""
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            # A truncated message may end in the middle of a number.
            found.frombytes(data[: len(data) - len(data) % _INT_BYTES])
    return found
