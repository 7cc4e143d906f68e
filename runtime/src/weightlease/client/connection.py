"""One connection to the agent: frames, descriptors and deadlines over a blocking exchange.

Requests go out one at a time, by one thread at a time. Descriptors queue up in the order of the
bytes they came with, and each frame takes the number it declares; whatever is left or missing is a
broken protocol. Any error but an error reply breaks the connection and closes every descriptor
that was received but not handed over.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import NoReturn, TypeVar

import msgspec

from weightlease import wire
from weightlease.client.settings import ClientSettings
from weightlease.errors import Failure, FailureCode, ProtocolError, Stage, WeightLeaseError
from weightlease.unix_socket import attached_descriptors, credentials_of, descriptors_room

CLIENT_NAME = "weightlease-python"
# Two, plus everything a publication may declare.
MAX_FDS_PER_REPLY = 2 + wire.MAX_DECLARED_FILES + wire.MAX_DECLARED_ASSETS
_RECEIVE_BYTES = 64 * 1024
# A producer of gigabytes changes places with the agent several times less often than with the
# default; the kernel gives what net.core.wmem_max allows.
_SEND_BUFFER_BYTES = 1024 * 1024
# As a plain number: the flag's own type makes each comparison cost microseconds.
_TRUNCATED = int(socket.MSG_CTRUNC)
# What poll takes; weeks after which no answer will come.
_LONGEST_POLL_MS = 2**31 - 1
_ANCILLARY_BYTES = descriptors_room(wire.MAX_FDS_PER_FRAME)
_TIMEVAL = struct.Struct("ll")

ResultT = TypeVar("ResultT", bound=msgspec.Struct)


class AgentUnreachableError(WeightLeaseError):
    """The agent does not listen, went away, or did not answer in time.

    `broken` says that an established connection ended; what it was doing may have happened.
    """

    def __init__(self, message: str, *, broken: bool = False) -> None:
        code = FailureCode.DOMAIN_UNAVAILABLE
        super().__init__(Failure(Stage.DOMAIN, code, retryable=True, message=message))
        self.broken = broken


class Connection:
    """An open connection, for one thread at a time; `hello` says what the agent answered."""

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(0)
        self.hello = wire.HelloResult(wire.PROTOCOL_VERSION, "", "", "", "")
        self._socket = connected
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)
        self._pid = os.getpid()
        self._buffer = bytearray()
        self._fds: deque[int] = deque()
        self._next_id = 0
        self._open = True

    @classmethod
    def establish(cls, settings: ClientSettings) -> Connection:
        """Connect, check who listens, and say hello.

        Raises:
            AgentUnreachableError: nobody listens, or it does not answer.
            WeightLeaseError: the listener is not trusted, or the agent refuses this peer.

        """
        connected = _connect(settings)
        try:
            _require_trusted(connected, settings)
            connection = cls(connected)
            params = wire.HelloParams(wire.SUPPORTED_VERSIONS, settings.read_token(), CLIENT_NAME)
            hello, _ = connection.request("hello", params, wire.HelloResult, settings.timeout)
        except BaseException:
            connected.close()
            raise
        if hello.version not in wire.SUPPORTED_VERSIONS:
            connection.close()
            raise ProtocolError(f"the agent chose protocol version {hello.version}, unknown here")
        connection.hello = hello
        return connection

    @property
    def usable(self) -> bool:
        """Whether another request can be made, in this process."""
        return self._open and self._pid == os.getpid()

    @property
    def idle(self) -> bool:
        """Whether it is usable and silent; an agent that went away makes it readable."""
        return self.usable and not self._readable()

    def request(
        self,
        method: str,
        params: msgspec.Struct,
        kind: type[ResultT],
        timeout: float,
        *,
        fd_count: str = "",
    ) -> tuple[ResultT, list[int]]:
        """Make one request and wait at most `timeout` seconds for its result.

        `fd_count` names the result's field that counts the descriptors of this reply; the caller
        owns them.

        Raises:
            WeightLeaseError: the agent's error reply; the connection goes on unless it was the
                late answer to a write.
            AgentUnreachableError, ProtocolError: the connection is closed.

        """
        deadline = time.monotonic() + timeout
        received: list[int] = []
        try:
            request_id = self.send(method, params, deadline)
            answer = self._answer(request_id, kind, fd_count, received, deadline)
        except BaseException:
            self.close()
            _close_all(received)
            raise
        if isinstance(answer, Failure):
            raise WeightLeaseError(answer)
        return answer, received

    def send(
        self, method: str, params: msgspec.Struct, deadline: float, data: memoryview | None = None
    ) -> int:
        """Send one request, with raw `data` behind it, and return its id.

        Raises:
            WeightLeaseError: an error reply that arrived before or while sending; where that cut
                `data` short, the connection is closed.
            AgentUnreachableError: the agent is gone or does not read; the connection is closed.

        """
        self._require_usable()
        self._next_id += 1
        frame = wire.encode_request(self._next_id, method, params)
        parts = [memoryview(frame)] if data is None else [memoryview(frame), data]
        self.raise_early_reply(deadline)
        while parts:
            try:
                sent = self._socket.sendmsg(parts, (), socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._wait(select.POLLIN | select.POLLOUT, deadline)
                if data is not None:
                    self._raise_refusal_of_cut_request(deadline)
                continue
            except OSError as error:
                self._lost_while_sending(error, deadline)
            parts = _after(parts, sent)
        return self._next_id

    def raise_early_reply(self, deadline: float) -> None:
        """Raise the error reply that a request without an answer got, if one has come."""
        if self._readable():
            reply = self._frame(deadline)
            if reply.error is None or reply.id > self._next_id or reply.fds:
                self._broken_protocol("the agent answered a request that has no answer")
            raise WeightLeaseError(reply.error)

    def close(self) -> None:
        """Close socket and undelivered descriptors; idempotent; a forked child closes copies."""
        if not self._open:
            return
        self._open = False
        self._socket.close()
        _close_all(list(self._fds))
        self._fds.clear()

    # ---- replies ----

    def _answer(
        self,
        request_id: int,
        kind: type[ResultT],
        fd_count: str,
        received: list[int],
        deadline: float,
    ) -> ResultT | Failure:
        reply = self._reply(request_id, deadline)
        if reply.error is not None:
            self._require_quiet()
            return reply.error
        result = wire.decode_result(reply, kind)
        expected = int(getattr(result, fd_count)) if fd_count else 0
        received += self._take_fds(reply)
        self._receive_more(request_id, expected, received, deadline)
        self._require_quiet()
        return result

    def _reply(self, request_id: int, deadline: float) -> wire.Reply:
        while True:
            reply = self._frame(deadline)
            if reply.id == request_id and not reply.more:
                return reply
            # A write that failed was answered before this request reached the agent.
            if reply.id < request_id and reply.error is not None and not reply.fds:
                continue
            self._broken_protocol(f"expected the reply to request {request_id}, got {reply.id}")

    def _receive_more(
        self, request_id: int, expected: int, received: list[int], deadline: float
    ) -> None:
        if not 0 <= expected <= MAX_FDS_PER_REPLY:
            self._broken_protocol(
                f"a reply with {expected} descriptors exceeds {MAX_FDS_PER_REPLY}"
            )
        while len(received) < expected:
            reply = self._frame(deadline)
            if reply.id != request_id or not reply.more or reply.error is not None:
                self._broken_protocol("a frame with more descriptors was expected")
            if not reply.fds:
                self._broken_protocol("a continuation frame carries no descriptor")
            received += self._take_fds(reply)
        if len(received) != expected:
            self._broken_protocol(f"expected {expected} descriptors, got {len(received)}")

    def _take_fds(self, reply: wire.Reply) -> list[int]:
        if reply.fds > len(self._fds):
            self._broken_protocol(
                f"a frame declares {reply.fds} descriptors and {len(self._fds)} have arrived"
            )
        return [self._fds.popleft() for _ in range(reply.fds)]

    def _require_quiet(self) -> None:
        if self._fds or self._buffer:
            self._broken_protocol("the agent sent more than the reply")

    # ---- bytes ----

    def _frame(self, deadline: float) -> wire.Reply:
        try:
            self._fill(wire.HEADER.size, deadline)
            length = wire.frame_length(bytes(self._buffer[: wire.HEADER.size]))
            end = wire.HEADER.size + length
            self._fill(end, deadline)
            reply = wire.decode_reply(bytes(self._buffer[wire.HEADER.size : end]))
        except WeightLeaseError:
            self.close()
            raise
        del self._buffer[:end]
        return reply

    def _fill(self, size: int, deadline: float) -> None:
        while len(self._buffer) < size:
            # Never past the frame: a later frame's descriptors would arrive with this one's.
            data = self._receive(min(size - len(self._buffer), _RECEIVE_BYTES), deadline)
            if not data:
                raise AgentUnreachableError("the agent closed the connection", broken=True)
            self._buffer += data

    def _receive(self, size: int, deadline: float) -> bytes:
        while True:
            try:
                data, ancillary, flags, _ = self._socket.recvmsg(
                    size, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                self._wait(select.POLLIN, deadline)
                continue
            except OSError as error:
                raise AgentUnreachableError(
                    f"the connection to the agent broke: {error}", broken=True
                ) from error
            self._queue(ancillary, flags)
            return data

    def _queue(self, ancillary: Sequence[tuple[int, int, bytes]], flags: int) -> None:
        self._fds.extend(attached_descriptors(ancillary))
        if flags & _TRUNCATED:
            raise ProtocolError(
                f"descriptors were lost: more than {wire.MAX_FDS_PER_FRAME} came with one frame, "
                "or this process is at its limit of open files (ulimit -n)"
            )
        if len(self._fds) > wire.MAX_FDS_PER_FRAME:
            raise ProtocolError(f"{len(self._fds)} descriptors wait for a frame that declares them")

    def _wait(self, events: int, deadline: float) -> None:
        self._poll.modify(self._socket, events)
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not self._poll.poll(min(remaining * 1000, _LONGEST_POLL_MS)):
            self.close()
            raise AgentUnreachableError("the agent did not answer in time")

    def _readable(self) -> bool:
        self._poll.modify(self._socket, select.POLLIN)
        return bool(self._poll.poll(0))

    def _raise_refusal_of_cut_request(self, deadline: float) -> None:
        try:
            self.raise_early_reply(deadline)
        except WeightLeaseError:
            # The agent waits for the rest of the data; this connection has no next request.
            self.close()
            raise

    def _lost_while_sending(self, error: OSError, deadline: float) -> NoReturn:
        # What the agent said before it closed explains more than a broken pipe.
        try:
            self.raise_early_reply(deadline)
        finally:
            self.close()
        raise AgentUnreachableError(
            f"the connection to the agent broke: {error}", broken=True
        ) from error

    def _broken_protocol(self, message: str) -> NoReturn:
        self.close()
        raise ProtocolError(message)

    def _require_usable(self) -> None:
        if not self.usable:
            raise AgentUnreachableError("the connection is closed", broken=True)


def _connect(settings: ClientSettings) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # A non-blocking connect to a full backlog fails at once; this one waits its turn.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(settings.timeout))
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        connected.connect(settings.socket_path)
    except OSError as error:
        connected.close()
        raise AgentUnreachableError(_unreachable(settings.socket_path, error)) from error
    return connected


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return _TIMEVAL.pack(whole, int((seconds - whole) * 1_000_000))


def _unreachable(path: str, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return (
            f"there is no socket at {path}; a pod mounts the node's socket directory there, "
            "another place is named by WEIGHTLEASE_SOCKET"
        )
    if error.errno == errno.ECONNREFUSED:
        return f"nobody listens at {path}; the node agent is not running"
    return f"the agent at {path} cannot be reached: {error}"


def _require_trusted(connected: socket.socket, settings: ClientSettings) -> None:
    uid = credentials_of(connected).uid
    if uid not in settings.trusted_uids:
        allowed = ", ".join(str(one) for one in sorted(settings.trusted_uids))
        raise WeightLeaseError.of(
            Stage.ACCESS,
            FailureCode.UNAUTHENTICATED,
            f"the socket {settings.socket_path} belongs to uid {uid}, not to one of {allowed}",
        )


def _after(parts: list[memoryview], sent: int) -> list[memoryview]:
    while parts and sent >= parts[0].nbytes:
        sent -= parts[0].nbytes
        parts = parts[1:]
    return [parts[0][sent:], *parts[1:]] if parts else []


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
