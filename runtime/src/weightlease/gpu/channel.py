"""The private socket between a donor and its consumers, both processes of one user.

    <directory>/            mode 0700, this user's, no symlink
      <name>.sock           mode 0600; bound when the weights are ready, unlinked on stop
      <name>.sock.lock      flock: one donor at a time; a socket without its lock held is stale

Each side asks the kernel for the other's uid (SO_PEERCRED) before it decodes a byte. A frame is a
u32 big-endian length and JSON, at most 1 MiB, with descriptors attached to its first byte:

    consumer ─► {"version": 1, "key": {…}, "gpu": "GPU-…", "torch": "2.11.0"}
    donor    ─► {"version": 1, "granted": {…}} + layout, then one descriptor per segment (vmm)
                                               or the exported allocations (cuda-ipc)
             or {"version": 1, "refused": {stage, code, retryable, message, details}}

Layout and exported allocations travel as sealed memfds of JSON. The connection is the lease: it
lasts until the consumer closes it, which its death does too. Nothing is pickled.
"""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from weightlease.errors import Failure, ProtocolError
from weightlease.gpu.errors import DonorUnavailableError, LayoutError, PeerRefusedError
from weightlease.gpu.key import WeightCacheKey
from weightlease.gpu.layout import MAX_LAYOUT_BYTES
from weightlease.unix_socket import attached_descriptors, credentials_of, descriptors_room
from weightlease.wire import HEADER, MAX_FRAME_BYTES, frame_length

PROTOCOL_VERSION = 1
MAX_DESCRIPTORS = 64
_ANCILLARY_BYTES = descriptors_room(MAX_DESCRIPTORS)
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL

MessageT = TypeVar("MessageT", bound=msgspec.Struct)


class Ask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a consumer wants; `gpu` is the physical UUID."""

    version: int
    key: WeightCacheKey
    gpu: str
    torch: str


class Granted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a donor lends; `segments` in bytes, one descriptor each (vmm).

    `donor` is `<pid>.<start time in ticks>.<random>`: another after every start.
    """

    donor: str
    transport: str
    gpu: str
    torch: str
    segments: tuple[int, ...] = ()


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A grant or a refusal."""

    version: int
    granted: Granted | None = None
    refused: Failure | None = None


def require_private_directory(socket_path: str) -> None:
    """The directory of the socket is this user's alone.

    Raises:
        PeerRefusedError: what it is instead.

    """
    directory = os.path.dirname(os.path.abspath(socket_path))
    try:
        found = os.lstat(directory)
    except OSError as error:
        raise DonorUnavailableError(
            f"{directory}: {error.strerror}; create it with mode 0700"
        ) from error
    if not stat.S_ISDIR(found.st_mode):
        raise PeerRefusedError(f"{directory} is not a directory; a link could lead anywhere")
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PeerRefusedError(
            f"{directory} belongs to uid {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}; "
            "it must be this user's with mode 0700"
        )


def require_private_socket(socket_path: str) -> None:
    """The socket itself is this user's alone.

    Raises:
        DonorUnavailableError: there is none.
        PeerRefusedError: it is no socket, or another user's.

    """
    try:
        found = os.lstat(socket_path)
    except FileNotFoundError:
        raise DonorUnavailableError(f"{socket_path} does not exist; start its donor") from None
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PeerRefusedError(f"{socket_path} is not a private socket of this user")


def require_same_user(connection: socket.socket, uid: int) -> int:
    """The peer runs as `uid`; returns its pid.

    Raises:
        PeerRefusedError: it does not.

    """
    peer = credentials_of(connection)
    if peer.uid != uid:
        raise PeerRefusedError(f"the peer runs as uid {peer.uid}, not {uid}; both must be one user")
    return peer.pid


def send_message(
    connection: socket.socket, message: msgspec.Struct, fds: Sequence[int] = ()
) -> None:
    """Send one frame and its descriptors.

    Raises:
        ProtocolError: the message is too large for a frame.
        OSError: the peer is gone, or too slow for the socket's timeout.

    """
    body = msgspec.json.encode(message)
    if len(body) > MAX_FRAME_BYTES or len(fds) > MAX_DESCRIPTORS:
        raise ProtocolError(
            f"a message of {len(body)} bytes and {len(fds)} descriptors is too large"
        )
    frame = HEADER.pack(len(body)) + body
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sent = connection.sendmsg([frame], rights)
    # Sending nothing to a peer that has answered and gone already would be an error.
    if sent < len(frame):
        connection.sendall(frame[sent:])


def receive_message(
    connection: socket.socket, kind: type[MessageT], *, descriptors: bool = False
) -> tuple[MessageT, list[int]]:
    """Receive one frame; the descriptors are the caller's to close.

    Raises:
        ProtocolError: bytes that are no such message, or descriptors nobody asked for.
        OSError: the peer is gone (EOFError too), or slower than the socket's timeout.

    """
    fds: list[int] = []
    try:
        header = _receive(connection, HEADER.size, fds)
        body = _receive(connection, frame_length(header), fds)
        _require_at_most(MAX_DESCRIPTORS if descriptors else 0, fds)
        return msgspec.json.decode(body, type=kind, strict=True), fds
    except BaseException as error:
        close_descriptors(fds)
        if isinstance(error, msgspec.MsgspecError | UnicodeDecodeError | RecursionError):
            raise ProtocolError(f"malformed {kind.__name__}: {error}") from error
        raise


def _require_at_most(most: int, fds: Sequence[int]) -> None:
    if len(fds) > most:
        raise ProtocolError(f"{len(fds)} descriptors came where a message carries {most}")


def _receive(connection: socket.socket, nbytes: int, fds: list[int]) -> bytes:
    received = bytearray()
    while len(received) < nbytes:
        data, ancillary, state, _ = connection.recvmsg(
            nbytes - len(received), _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
        )
        fds += attached_descriptors(ancillary)
        if state & socket.MSG_CTRUNC:
            raise ProtocolError("more descriptors came than a message carries")
        if not data:
            raise EOFError("the peer closed the connection")
        received += data
    return bytes(received)


def close_descriptors(fds: Sequence[int]) -> None:
    """Close each, whatever closing another answers."""
    for fd in fds:
        with suppress(OSError):
            os.close(fd)


def sealed_memory(data: bytes) -> int:
    """`data` as a descriptor that nobody can change any more, the caller's to close."""
    fd = os.memfd_create("weightlease-layout", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[os.write(fd, remaining) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_sealed(fd: int) -> bytes:
    """What a sealed descriptor from a peer holds.

    Raises:
        LayoutError: it is not sealed, is empty, or is larger than a layout may be.

    """
    try:
        sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    except OSError as error:
        raise LayoutError(f"the layout's descriptor has no seals: {error}") from error
    size = os.fstat(fd).st_size
    if not sealed or not 0 < size <= MAX_LAYOUT_BYTES:
        raise LayoutError(
            f"the layout's {size} bytes are not sealed, or not 1 to {MAX_LAYOUT_BYTES}"
        )
    with mmap.mmap(fd, size, prot=mmap.PROT_READ) as mapped:
        return mapped[:]
