"""Publications: admitting one producer per key, letting others wait, streaming on threads.

A waiting producer costs no thread: its key's build lock is tried without blocking, at once when a
publication of this agent ends and a few times a second for builders elsewhere, until it waits no
longer or its peer has gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.identity import WeightArtifactIdentity
from weightlease.lease_record import HolderKind
from weightlease.names import StorageClass
from weightlease.store.artifact import OpenArtifact
from weightlease.store.publication import Publication
from weightlease.wire import BeginParams, BeginResult, PublicationStatus
from weightlease_node_agent.authorization import (
    PublicationGrant,
    authorize_publication,
    unavailable,
)
from weightlease_node_agent.capacity import Capacity
from weightlease_node_agent.channel import Channel, Drop, PeerLostError, ThreadChannel
from weightlease_node_agent.domains import AgentDomain, Domains, Place
from weightlease_node_agent.executor import Run
from weightlease_node_agent.ledger import Claim
from weightlease_node_agent.limits import Quota, too_many
from weightlease_node_agent.metrics import PUBLISHED, Metrics
from weightlease_node_agent.peers import Peer
from weightlease_node_agent.pins import Pins
from weightlease_node_agent.records import UNMANAGED
from weightlease_node_agent.session import Progress, PublicationSession
from weightlease_node_agent.settings import Settings
from weightlease_node_agent.survey import Publishing
from weightlease_node_agent.wanted import Wanted

log = structlog.get_logger(__name__)
_RETRY_SECONDS = 0.25
_MAX_WAIT_SECONDS = 3600.0
_LOST = "peer_lost"


@dataclass(eq=False)
class Begun:
    """What `begin` found; with a session the peer is the producer and has to be streamed."""

    result: BeginResult
    peer: Peer
    place: Place
    grant: PublicationGrant
    session: PublicationSession | None = None
    reservation: int = 0
    started: float = 0.0

    @property
    def entry_id(self) -> str:
        """The spec entry that the publication is for, empty on a bare host."""
        return self.grant.entry.id if self.grant.entry else ""


@dataclass(frozen=True)
class _Request:
    peer: Peer
    params: BeginParams
    identity: WeightArtifactIdentity
    grant: PublicationGrant
    channel: Channel


class Publications:
    """Every publication of this agent."""

    def __init__(
        self,
        domains: Domains,
        pins: Pins,
        capacity: Capacity,
        wanted: Wanted,
        settings: Settings,
        run: Run,
        metrics: Metrics,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._domains = domains
        self._pins = pins
        self._capacity = capacity
        self._wanted = wanted
        self._limits = limits = settings.limits
        self._opened = frozenset(settings.unmanaged)
        self._run = run
        self._threads = Run("publication", limits.publications)
        self._quota = Quota("publications", 2**31, limits.publications_per_peer)
        self._metrics = metrics
        self._on_change = on_change
        self._active: set[Begun] = set()
        self._ended = asyncio.Event()

    def active(self) -> list[Publishing]:
        """Publications that stream now."""
        return [
            Publishing(
                begun.place,
                begun.result.key,
                begun.entry_id,
                begun.session.progress.total,
                begun.session.progress.done,
            )
            for begun in self._active
            if begun.session is not None
        ]

    async def begin(self, peer: Peer, params: BeginParams, channel: Channel) -> Begun:
        """Make `peer` the one producer of an identity, or find the artifact present.

        Raises:
            WeightLeaseError: without the right to publish it, without room, or after waiting.
            PeerLostError: the peer went away while it waited.

        """
        if params.total_bytes < 0 or not params.wait_seconds >= 0:
            raise WeightLeaseError.of(
                Stage.PRODUCTION,
                FailureCode.INVALID_CONFIG,
                f"total_bytes {params.total_bytes} and wait_seconds {params.wait_seconds} "
                "must not be negative",
            )
        self._require_synced(peer)
        identity = WeightArtifactIdentity.from_dict(params.identity)
        grant = self._authorize(peer, identity, params)
        request = _Request(peer, params, identity, grant, channel)
        self._quota.take(peer.account)
        try:
            place = Place(grant.namespace, grant.storage_class)
            domain = await self._run(self._domains.open, place)
            begun = await self._wait(request, domain)
        except BaseException:
            self._quota.give(peer.account)
            raise
        if begun.session is None:
            self._quota.give(peer.account)
        return begun

    async def stream(self, begun: Begun) -> None:
        """Serve the producer's connection until its publication is over.

        Raises:
            PeerLostError, ProtocolError: its connection is to be dropped.

        """
        session = _session_of(begun)
        outcome = _LOST
        try:
            ended = await self._threads(session.run)
            outcome = PUBLISHED if ended.published else "aborted"
            if ended.failure is not None:
                outcome = str(ended.failure.code)
        finally:
            if session.outcome.published is not None:
                outcome = PUBLISHED
            self._end(begun, session, outcome)

    async def abandon(self, begun: Begun) -> None:
        """Give up a publication whose producer never learnt that it may begin."""
        session = _session_of(begun)
        await self._run(session.publication.abort)
        self._end(begun, session, _LOST)

    def close(self) -> None:
        """Wait for the threads; their connections have to be ended first."""
        self._threads.close()

    async def _wait(self, request: _Request, domain: AgentDomain) -> Begun:
        params = request.params
        deadline = time.monotonic() + min(params.wait_seconds, _MAX_WAIT_SECONDS)
        made_room = False
        while True:
            self._ended.clear()
            try:
                if len(self._active) >= self._limits.publications:
                    raise too_many(f"this node already has {len(self._active)} publications")
                # An invalid artifact is replaced under its exclusive lock, which an idle pin bars.
                self._pins.close_idle(
                    at_once=lambda pin: pin.domain is domain and pin.key == request.identity.key
                )
                found = await self._run(
                    domain.store.begin, request.identity, params.total_bytes, timeout=0.0
                )
            except WeightLeaseError as error:
                if error.failure.stage is Stage.CAPACITY and not made_room:
                    made_room = True
                    await self._capacity.make_room(_claim(request, domain))
                    continue
                if not _worth_waiting(error) or time.monotonic() >= deadline:
                    raise
            else:
                return await self._begun(found, request, domain)
            if request.channel.hung_up():
                raise PeerLostError(Drop.CLOSED)
            try:
                async with asyncio.timeout(_RETRY_SECONDS):
                    await self._ended.wait()
            except TimeoutError:
                continue

    async def _begun(
        self, found: Publication | OpenArtifact, request: _Request, domain: AgentDomain
    ) -> Begun:
        if isinstance(found, OpenArtifact):
            result = await self._run(_present, found, domain, request.grant)
            self._on_change()
            return Begun(result, request.peer, domain.place, request.grant)
        reservation = await self._reserve(found, request, domain)
        session = PublicationSession(
            ThreadChannel(request.channel.socket),
            found,
            Progress(request.params.total_bytes),
            self._limits,
            expectation=lambda: self._expectation(request),
            published=lambda result: record_made_for(domain, result.key, request.grant),
        )
        result = BeginResult(PublicationStatus.BUILD, request.identity.key)
        begun = Begun(
            result,
            request.peer,
            domain.place,
            request.grant,
            session,
            reservation,
            time.monotonic(),
        )
        self._active.add(begun)
        self._changed()
        log.info("publication begun", key=result.key, peer=str(request.peer), entry=begun.entry_id)
        return begun

    async def _reserve(
        self, publication: Publication, request: _Request, domain: AgentDomain
    ) -> int:
        # Held by this key's build lock: a producer that waits for another reserves nothing.
        try:
            return await self._capacity.reserve(_claim(request, domain))
        except BaseException:
            await self._run(publication.abort)
            raise

    def _expectation(self, request: _Request) -> str:
        # Asked on the publication's thread when it ends: the spec may have moved on since.
        renewed = self._authorize(request.peer, request.identity, request.params)
        return renewed.entry.manifest_sha256 if renewed.entry else ""

    def _require_synced(self, peer: Peer) -> None:
        # While the API server is away rights may have been taken back that nobody told us of. A
        # publication that has begun goes on: its end asks the latest spec that is known.
        if peer.kind is HolderKind.POD and not self._wanted.spec.synced:
            raise unavailable("this node's spec is not current, the API server may be away")

    def _authorize(
        self, peer: Peer, identity: WeightArtifactIdentity, params: BeginParams
    ) -> PublicationGrant:
        return authorize_publication(
            peer,
            identity,
            _storage_class(params.storage_class),
            params.namespace,
            self._wanted.spec.entries,
            self._opened,
        )

    def _end(self, begun: Begun, session: PublicationSession, outcome: str) -> None:
        self._active.discard(begun)
        self._capacity.end(begun.reservation)
        self._quota.give(begun.peer.account)
        self._ended.set()
        seconds = time.monotonic() - begun.started
        self._metrics.publications.labels(outcome).inc()
        self._metrics.publication_seconds.labels(outcome).observe(seconds)
        self._metrics.publication_bytes.inc(session.progress.done)
        self._changed()
        log.info(
            "publication ended",
            key=begun.result.key,
            peer=str(begun.peer),
            outcome=outcome,
            bytes=session.progress.done,
            seconds=round(seconds, 3),
        )

    def _changed(self) -> None:
        self._metrics.publications_active.set(len(self._active))
        self._on_change()


def _session_of(begun: Begun) -> PublicationSession:
    if begun.session is None:
        raise RuntimeError("a present artifact has no stream")
    return begun.session


def _claim(request: _Request, domain: AgentDomain) -> Claim:
    entry = request.grant.entry
    return Claim(
        domain.place,
        request.identity.key,
        request.params.total_bytes,
        entry.id if entry else "",
        unmanaged=request.grant.unmanaged,
    )


def record_made_for(domain: AgentDomain, key: str, grant: PublicationGrant) -> None:
    """Note what an artifact was made for; after the rename nothing may fail the producer."""
    if grant.entry is None and not grant.unmanaged:
        return
    made_for = (grant.entry.id, grant.entry.generation) if grant.entry else (UNMANAGED, 0)
    try:
        domain.records.add(key, *made_for)
    except OSError as error:
        log.warning("record is not written", key=key, error=error.strerror)


def _present(found: OpenArtifact, domain: AgentDomain, grant: PublicationGrant) -> BeginResult:
    with found:
        expected = grant.entry.manifest_sha256 if grant.entry else ""
        if expected not in {"", found.manifest_sha256}:
            raise WeightLeaseError.of(
                Stage.PRODUCTION,
                FailureCode.CONTENT_MISMATCH,
                f"artifact {found.key} is present with manifest {found.manifest_sha256}, the first "
                f"node fixed {expected}",
            )
        if not grant.unmanaged:
            record_made_for(domain, found.key, grant)
        return BeginResult(
            PublicationStatus.PRESENT,
            found.key,
            found.manifest_sha256,
            found.manifest.payload_bytes,
        )


def _worth_waiting(error: WeightLeaseError) -> bool:
    return error.failure.code in {
        FailureCode.ACTIVE_BUILD_TIMEOUT,
        FailureCode.TOO_MANY_REQUESTS,
    }


def _storage_class(name: str) -> StorageClass:
    try:
        return StorageClass(name)
    except ValueError:
        raise WeightLeaseError.of(
            Stage.CONFIGURATION,
            FailureCode.INVALID_CONFIG,
            f"storage class {name[:40]!r} is unknown; use {' or '.join(StorageClass)}",
        ) from None
