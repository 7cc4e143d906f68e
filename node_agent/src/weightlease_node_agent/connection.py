"""One peer's connection, from hello to its end.

Fates: bytes that are not the protocol, silence past a deadline and unread replies drop the
connection; a request that may not or cannot be done is answered with a failure; only a broken
invariant of the agent itself would end the process. A connection is ended from outside by shutting
its socket down, never by cancelling its task, so that no descriptor in the making is lost.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog

from weightlease.errors import Failure, FailureCode, ProtocolError, Stage, WeightLeaseError
from weightlease.filesystem import storage_failure
from weightlease.unix_socket import Credentials
from weightlease.wire import (
    SUPPORTED_VERSIONS,
    BeginParams,
    HelloParams,
    HelloResult,
    Reply,
    Request,
    decode_request,
    encode_error,
    encode_frame,
    encode_result,
)
from weightlease_node_agent import __version__
from weightlease_node_agent.auth import Authenticator
from weightlease_node_agent.authorization import denied
from weightlease_node_agent.channel import Channel, Drop, PeerLostError
from weightlease_node_agent.inflight import InFlight
from weightlease_node_agent.limits import Quota, Turns
from weightlease_node_agent.peers import Peer
from weightlease_node_agent.publications import Publications
from weightlease_node_agent.requests import Answer, Answerer
from weightlease_node_agent.session import out_of_order
from weightlease_node_agent.settings import Limits
from weightlease_node_agent.states import State, next_state

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Services:
    """What every connection of an agent shares."""

    node: str
    limits: Limits
    authenticator: Authenticator
    requests: Answerer
    publications: Publications
    connections: Quota
    descriptors: Quota
    turns: Turns


class Connection:
    """Serves one peer; `on_hello` is told once it is no stranger any more."""

    def __init__(
        self,
        connection: socket.socket,
        credentials: Credentials,
        services: Services,
        on_hello: Callable[[Connection], None],
    ) -> None:
        self.channel = Channel(connection)
        self.credentials = credentials
        self.services = services
        self.on_hello = on_hello
        self.in_flight = InFlight(
            self.channel,
            services.descriptors,
            services.limits.send_seconds,
            lambda: self.end(Drop.SEND_TIMEOUT),
        )
        self._state = State.NEW
        self._peer: Peer | None = None
        self._token = ""
        self._leases: list[str] = []
        self._ended: Drop | None = None

    def end(self, reason: Drop) -> None:
        """End the connection from outside; its task sees the socket close and returns."""
        self._ended = self._ended or reason
        with contextlib.suppress(OSError):
            self.channel.socket.shutdown(socket.SHUT_RDWR)

    async def serve(self) -> Drop | None:
        """Serve until the end; the reason when it was the agent who ended it."""
        try:
            with contextlib.ExitStack() as held:
                await self._hello(held)
                await self._serve_requests()
        except PeerLostError as lost:
            return self._ended or (None if lost.reason is Drop.CLOSED else lost.reason)
        except ProtocolError as error:
            log.warning("peer dropped", peer=self._name, error=str(error))
            return Drop.PROTOCOL
        except Exception:
            log.exception("connection failed", peer=self._name)
            return Drop.INTERNAL
        finally:
            self.in_flight.close()
            self.channel.socket.close()
            if self._leases:
                self.services.requests.connection_closed(self._leases)
        return self._ended

    @property
    def _name(self) -> str:
        if self._peer is not None:
            return str(self._peer)
        return f"uid {self.credentials.uid} pid {self.credentials.pid}"

    async def _hello(self, held: contextlib.ExitStack) -> None:
        limits = self.services.limits
        body = await self.channel.receive_frame(
            idle=limits.hello_seconds, frame=limits.hello_seconds, late=Drop.HELLO_TIMEOUT
        )
        if body is None:
            raise PeerLostError(Drop.CLOSED)
        request, params = decode_request(body)
        self.on_hello(self)
        if not isinstance(params, HelloParams):
            await self._send(encode_error(request.id, out_of_order(request.method, self._state)))
            raise PeerLostError(Drop.UNAUTHENTICATED)
        try:
            version = choose_version(params.versions)
            peer = await self.services.authenticator.authenticate(self.credentials, params.token)
            held.enter_context(self.services.connections.held(peer.account))
        except WeightLeaseError as error:
            log.info("hello refused", peer=self._name, failure=str(error.failure))
            await self._send(encode_error(request.id, error.failure))
            raise PeerLostError(_reason_of(error.failure)) from error
        self._peer, self._token, self._state = peer, params.token, State.READY
        result = HelloResult(version, __version__, self.services.node, str(peer), peer.namespace)
        await self._send(encode_result(request.id, result))

    async def _serve_requests(self) -> None:
        limits = self.services.limits
        while True:
            body = await self.channel.receive_frame(
                idle=limits.idle_seconds, frame=limits.frame_seconds, late=Drop.IDLE_TIMEOUT
            )
            if body is None:
                return
            request, params = decode_request(body)
            if next_state(self._state, request.method) is None:
                if request.method == "write":
                    raise ProtocolError(f"a write is not allowed while {self._state}")
                failure = out_of_order(request.method, self._state)
                await self._send(encode_error(request.id, failure))
                continue
            await self._serve_request(request, params)

    async def _serve_request(self, request: Request, params: msgspec.Struct) -> None:
        peer = self._require_peer()
        try:
            require_served(self.services.requests.methods, request.method)
            if isinstance(params, BeginParams):
                await self._publish(request, params)
                return
            async with self.services.turns.of(peer.account):
                self.services.descriptors.require_room(peer.account)
                answer = await self._answer(peer, request.method, params)
        except ProtocolError:
            raise
        except WeightLeaseError as error:
            await self._send(encode_error(request.id, error.failure))
            return
        with answer:
            if answer.lease_id:
                self._leases.append(answer.lease_id)
            await self._send_answer(request.id, answer)

    async def _answer(self, peer: Peer, method: str, params: msgspec.Struct) -> Answer:
        try:
            return await self.services.requests.answer(peer, method, params)
        except OSError as error:
            failure = storage_failure(error, f"cannot serve {method}")
            log.warning("request failed", peer=self._name, failure=str(failure))
            raise WeightLeaseError(failure) from error

    async def _publish(self, request: Request, params: BeginParams) -> None:
        # The right to publish needs a verdict of this minute, not of this connection's start.
        peer = await self.services.authenticator.authenticate(self.credentials, self._token)
        begun = await self.services.publications.begin(peer, params, self.channel)
        if begun.session is None:
            await self._send(encode_result(request.id, begun.result))
            return
        try:
            await self._send(encode_result(request.id, begun.result))
        except PeerLostError:
            await self.services.publications.abandon(begun)
            raise
        await self.services.publications.stream(begun)

    async def _send_answer(self, request_id: int, answer: Answer) -> None:
        if not answer.descriptors:
            await self._send(encode_result(request_id, answer.result))
            return
        seconds, account = self.services.limits.send_seconds, self._require_peer().account
        for index, batch in enumerate(answer.batches):
            try:
                await self.in_flight.reserve(account, len(batch))
            except WeightLeaseError as error:
                if index:
                    raise PeerLostError(Drop.DESCRIPTORS) from error
                await self._send(encode_error(request_id, error.failure))
                return
            frame = (
                encode_frame(Reply(request_id, more=True, fds=len(batch)))
                if index
                else encode_result(request_id, answer.result, fds=len(batch))
            )
            await self.channel.send_frame(frame, batch, seconds)
            self.in_flight.watch()

    async def _send(self, data: bytes) -> None:
        await self.channel.send_frame(data, (), self.services.limits.send_seconds)

    def _require_peer(self) -> Peer:
        if self._peer is None:
            raise RuntimeError("a request was served before hello")
        return self._peer


def require_served(methods: frozenset[str], method: str) -> None:
    """Raises permission_denied for a method that the peer's socket is not for."""
    if method not in methods:
        raise denied(f"{method} is not served at this socket")


def choose_version(offered: tuple[int, ...]) -> int:
    """The highest version that both sides speak.

    Raises:
        WeightLeaseError: unsupported, naming both lists.

    """
    common = set(offered) & set(SUPPORTED_VERSIONS)
    if not common:
        raise WeightLeaseError.of(
            Stage.ACCESS,
            FailureCode.UNSUPPORTED,
            f"protocol versions {sorted(offered)[:8]} and {sorted(SUPPORTED_VERSIONS)} have none "
            "in common; bring client and agent within one release of each other",
        )
    return max(common)


def _reason_of(failure: Failure) -> Drop:
    if failure.code is FailureCode.TOO_MANY_REQUESTS:
        return Drop.CAPACITY
    return Drop.UNAUTHENTICATED
