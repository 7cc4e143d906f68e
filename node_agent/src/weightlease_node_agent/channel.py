"""Frames over one peer's socket, for the event loop and for a publication's thread.

asyncio's streams drop SCM_RIGHTS, so this reads and writes with recvmsg and sendmsg. It reads no
byte ahead of what it was asked for, so that a socket can change hands between loop and thread at
any frame. Whatever a peer does wrong raises PeerLostError or ProtocolError, which cost that peer
its connection and nothing else.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import os
import select
import socket
import struct
import termios
import time
from collections.abc import Sequence
from enum import StrEnum

from weightlease.errors import ProtocolError
from weightlease.unix_socket import attached_descriptors, descriptors_room
from weightlease.wire import HEADER, MAX_FDS_PER_FRAME, frame_length

_ANCILLARY = descriptors_room(MAX_FDS_PER_FRAME)
_FIRST_DRAIN_CHECK_SECONDS = 0.001
_LAST_DRAIN_CHECK_SECONDS = 0.1


class Drop(StrEnum):
    """Why a connection was dropped; the values are metric labels."""

    CLOSED = "closed"
    PROTOCOL = "protocol"
    HELLO_TIMEOUT = "hello_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    FRAME_TIMEOUT = "frame_timeout"
    SEND_TIMEOUT = "send_timeout"
    DESCRIPTORS = "descriptors"
    CAPACITY = "capacity"
    UNAUTHENTICATED = "unauthenticated"
    STOPPING = "stopping"
    INTERNAL = "internal"


class PeerLostError(Exception):
    """The connection is over; `reason` says whose doing it was."""

    def __init__(self, reason: Drop) -> None:
        super().__init__(reason)
        self.reason = reason


def unread_bytes(connection: socket.socket) -> int:
    """How many bytes the peer has not read yet; with none left, no descriptor is in flight."""
    raw = fcntl.ioctl(connection, termios.TIOCOUTQ, b"\0\0\0\0")
    return int(struct.unpack("i", raw)[0])


def refuse_descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> None:
    """Close whatever a peer sent along; peers send no descriptors."""
    received = attached_descriptors(ancillary)
    for descriptor in received:
        os.close(descriptor)
    if received:
        raise ProtocolError("peers send no descriptors")


class Channel:
    """The event loop's side of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)  # noqa: FBT003 - the socket's own signature
        self.socket = connection
        self._loop = asyncio.get_running_loop()

    async def receive_frame(self, *, idle: float, frame: float, late: Drop) -> bytes | None:
        """The next frame's body, or None when the peer has closed between two frames.

        `idle` seconds may pass before its first byte (then `late` is the reason), `frame` seconds
        from there to its last.

        Raises:
            PeerLostError: too late, or closed in the middle.
            ProtocolError: an impossible length, or descriptors.

        """
        header = bytearray(HEADER.size)
        first = await self._receive(memoryview(header), self._loop.time() + idle, late)
        if not first:
            return None
        deadline = self._loop.time() + frame
        await self._fill(memoryview(header)[first:], deadline)
        body = bytearray(frame_length(bytes(header)))
        await self._fill(memoryview(body), deadline)
        return bytes(body)

    async def send_frame(self, data: bytes, descriptors: Sequence[int], seconds: float) -> None:
        """Send one frame; descriptors go with its first byte.

        Raises:
            PeerLostError: the peer went away or does not read.

        """
        rights = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            if descriptors
            else []
        )
        deadline = self._loop.time() + seconds
        view = memoryview(data)
        while view:
            try:
                sent = self.socket.sendmsg([view], rights, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                await self._writable(deadline)
            except OSError as error:
                raise PeerLostError(Drop.CLOSED) from error
            else:
                view, rights = view[sent:], []

    async def drained(self, seconds: float) -> None:
        """Wait until the peer has read everything.

        Raises:
            PeerLostError: it has not within `seconds`.

        """
        deadline = self._loop.time() + seconds
        pause = _FIRST_DRAIN_CHECK_SECONDS
        while unread_bytes(self.socket):
            if self._loop.time() >= deadline:
                raise PeerLostError(Drop.SEND_TIMEOUT)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LAST_DRAIN_CHECK_SECONDS)

    def hung_up(self) -> bool:
        """Whether the peer has closed, seen without taking anything off the socket."""
        try:
            return self.socket.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    async def _fill(self, view: memoryview, deadline: float) -> None:
        while view:
            count = await self._receive(view, deadline, Drop.FRAME_TIMEOUT)
            if not count:
                raise PeerLostError(Drop.CLOSED)
            view = view[count:]

    async def _receive(self, view: memoryview, deadline: float, late: Drop) -> int:
        while True:
            try:
                count, ancillary, _, _ = self.socket.recvmsg_into(
                    [view], _ANCILLARY, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                await self._readable(deadline, late)
            except OSError as error:
                raise PeerLostError(Drop.CLOSED) from error
            else:
                refuse_descriptors(ancillary)
                return count

    async def _readable(self, deadline: float, late: Drop) -> None:
        # By number: asyncio words an error, socket and addresses included, for each first time.
        number = self.socket.fileno()
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(number, _resolve, ready)
        try:
            await self._before(deadline, ready, late)
        finally:
            self._loop.remove_reader(number)

    async def _writable(self, deadline: float) -> None:
        number = self.socket.fileno()
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(number, _resolve, ready)
        try:
            await self._before(deadline, ready, Drop.SEND_TIMEOUT)
        finally:
            self._loop.remove_writer(number)

    async def _before(self, deadline: float, ready: asyncio.Future[None], late: Drop) -> None:
        timer = self._loop.call_at(deadline, _lose, ready, late)
        try:
            await ready
        finally:
            timer.cancel()


class ThreadChannel:
    """A thread's side of a connection that the loop has lent it.

    A shutdown of the socket from the loop wakes it with PeerLostError.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def receive_frame(self, *, idle: float, frame: float) -> bytes:
        """The next frame's body; raises as `Channel.receive_frame`, closing included."""
        header = bytearray(HEADER.size)
        first = self._receive(memoryview(header), time.monotonic() + idle)
        deadline = time.monotonic() + frame
        self.fill(memoryview(header)[first:], deadline)
        body = bytearray(frame_length(bytes(header)))
        self.fill(memoryview(body), deadline)
        return bytes(body)

    def fill(self, view: memoryview, deadline: float) -> None:
        """Receive exactly `len(view)` bytes before `deadline` (monotonic seconds)."""
        while view:
            view = view[self._receive(view, deadline) :]

    def send_frame(self, data: bytes, seconds: float) -> None:
        """Send one frame without descriptors."""
        deadline = time.monotonic() + seconds
        view = memoryview(data)
        while view:
            try:
                view = view[self._socket.send(view, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                self._wait(select.POLLOUT, deadline, Drop.SEND_TIMEOUT)
            except OSError as error:
                raise PeerLostError(Drop.CLOSED) from error

    def _receive(self, view: memoryview, deadline: float) -> int:
        while True:
            try:
                count, ancillary, _, _ = self._socket.recvmsg_into(
                    [view], _ANCILLARY, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                self._wait(select.POLLIN, deadline, Drop.FRAME_TIMEOUT)
                continue
            except OSError as error:
                raise PeerLostError(Drop.CLOSED) from error
            refuse_descriptors(ancillary)
            if not count:
                raise PeerLostError(Drop.CLOSED)
            return count

    def _wait(self, events: int, deadline: float, late: Drop) -> None:
        poll = select.poll()
        poll.register(self._socket, events)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise PeerLostError(late)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _lose(future: asyncio.Future[None], reason: Drop) -> None:
    if not future.done():
        future.set_exception(PeerLostError(reason))
