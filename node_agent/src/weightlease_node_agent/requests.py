"""What a ready connection may ask for: acquire, release, inspect, cleanup."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeVar

import msgspec

from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.identity import is_key
from weightlease.lease_record import HolderKind
from weightlease.names import parse_reference
from weightlease.policy import Validation
from weightlease.reports import CleanupStatus
from weightlease.wire import (
    MAX_FDS_PER_FRAME,
    METHOD_PARAMS,
    VOLUME_METHODS,
    AcquireParams,
    AcquireResult,
    CleanupParams,
    CleanupReply,
    Empty,
    InspectParams,
    InspectResult,
    ReleaseParams,
)
from weightlease_node_agent.authorization import (
    authorize_reference,
    granted_entries,
    namespace_of,
    require_administrator,
    require_current,
)
from weightlease_node_agent.domains import AgentDomain, Domains, Place
from weightlease_node_agent.inventory import inspected
from weightlease_node_agent.leases import Grant, Lease, Leases
from weightlease_node_agent.metrics import Metrics
from weightlease_node_agent.peers import Peer
from weightlease_node_agent.removal import Remover
from weightlease_node_agent.survey import Surveyor
from weightlease_node_agent.wanted import Wanted, missing

LeaseT = TypeVar("LeaseT")


@dataclass
class Answer:
    """A result and the descriptors that go with it; closes them when its block ends."""

    result: msgspec.Struct
    descriptors: list[int] = field(default_factory=list)
    lease_id: str = ""

    @property
    def batches(self) -> Iterator[list[int]]:
        """The descriptors, as many at a time as one frame may carry."""
        for start in range(0, len(self.descriptors), MAX_FDS_PER_FRAME):
            yield self.descriptors[start : start + MAX_FDS_PER_FRAME]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()


class Answerer(Protocol):
    """Answers what peers of one kind of socket ask; `methods` names what that may be."""

    @property
    def methods(self) -> frozenset[str]:
        """The protocol's names."""

    async def answer(self, peer: Peer, method: str, params: Any) -> Answer:
        """Raises WeightLeaseError: what the peer is told instead."""

    def connection_closed(self, lease_ids: list[str]) -> None:
        """A connection that was given these leases has ended."""


class Requests:
    """Answers requests of authenticated peers."""

    methods = frozenset(METHOD_PARAMS) - VOLUME_METHODS

    def __init__(
        self,
        domains: Domains,
        leases: Leases,
        wanted: Wanted,
        remover: Remover,
        surveyor: Surveyor,
        metrics: Metrics,
        connection_closed: Callable[[list[str]], None],
    ) -> None:
        self._domains = domains
        self._leases = leases
        self._wanted = wanted
        self._remover = remover
        self._surveyor = surveyor
        self._metrics = metrics
        self.connection_closed = connection_closed

    async def answer(self, peer: Peer, method: str, params: Any) -> Answer:
        """The answer to one request.

        Raises:
            WeightLeaseError: what the peer is told instead.

        """
        require_current(peer, time.time())
        match params:
            case AcquireParams():
                return await self._acquire(peer, params)
            case ReleaseParams():
                await self._leases.probe([params.lease_id])
                return Answer(Empty())
            case InspectParams():
                return Answer(await self._inspect(peer, params))
            case CleanupParams():
                return Answer(await self._cleanup(peer, params))
            case _:
                raise RuntimeError(f"no handler for {method}")

    async def _acquire(self, peer: Peer, params: AcquireParams) -> Answer:
        started = time.perf_counter()
        try:
            answer = await self._granted(peer, params)
        except WeightLeaseError as error:
            self._metrics.refused.labels(str(error.failure.code)).inc()
            raise
        self._metrics.acquire_seconds.observe(time.perf_counter() - started)
        return answer

    async def _granted(self, peer: Peer, params: AcquireParams) -> Answer:
        try:
            validation = Validation(params.validation)
        except ValueError:
            raise _invalid(
                f"validation {params.validation[:40]!r} is unknown; use {' or '.join(Validation)}"
            ) from None

        def lease(domain: AgentDomain, key: str) -> Awaitable[Grant]:
            return self._leases.grant(domain, key, peer.holder, validation, assets=params.assets)

        grant = await self._first_found(peer, params, lease)
        pin, record = grant.pin, grant.lease.record
        result = AcquireResult(
            record.lease_id,
            record.key,
            str(pin.domain.place.storage_class),
            pin.artifact.domain_uuid,
            pin.ready.publication_id,
            pin.ready.manifest_sha256,
            pin.manifest_file.mark.size,
            str(validation),
            len(grant.descriptors),
        )
        return Answer(result, grant.descriptors, record.lease_id)

    async def lease_for_volume(self, peer: Peer, reference: str, volume: str) -> Lease:
        """Lease what `reference` means to a pod until its volume ends; `volume` is the handle.

        Raises:
            WeightLeaseError: as for an acquire.

        """

        def hold(domain: AgentDomain, key: str) -> Awaitable[Lease]:
            return self._leases.hold_volume(domain, key, peer.holder, volume)

        return await self._first_found(peer, AcquireParams(reference), hold)

    async def _first_found(
        self,
        peer: Peer,
        params: AcquireParams,
        lease: Callable[[AgentDomain, str], Awaitable[LeaseT]],
    ) -> LeaseT:
        """What `lease` gives for the first candidate that is on this node."""
        for domain, key in self._candidates(peer, params):
            try:
                return await lease(domain, key)
            except WeightLeaseError as error:
                if error.failure.code is not FailureCode.LOCAL_MISS:
                    raise
        raise missing(f"{params.reference or params.key} is not on this node")

    def _candidates(self, peer: Peer, params: AcquireParams) -> Iterator[tuple[AgentDomain, str]]:
        """Where an artifact may be, best first."""
        if bool(params.reference) == bool(params.key):
            raise _invalid("give exactly one of reference and key")
        if params.key:
            if not is_key(params.key):
                raise _invalid(f"key {params.key[:80]!r} is not 64 lowercase hex digits")
            return ((domain, params.key) for domain in self._holding(peer, params.key))
        return self._named(peer, params.reference)

    def _named(self, peer: Peer, text: str) -> Iterator[tuple[AgentDomain, str]]:
        if peer.kind is not HolderKind.POD:
            raise WeightLeaseError.of(
                Stage.LOOKUP,
                FailureCode.UNSUPPORTED,
                "references are resolved by Kubernetes; on a bare host acquire by key",
            )
        try:
            reference = parse_reference(text)
        except ValueError as error:
            raise _invalid(str(error)) from error
        entry = authorize_reference(peer, reference, self._wanted.spec.entries)
        for domain in self._domains.of_namespace(entry.namespace):
            if domain.place.storage_class is not entry.storage_class:
                continue
            if entry.key:
                yield domain, entry.key
            # Until the new generation is here, the name means the one before.
            for key in domain.records.older_keys(entry.id, entry.generation):
                yield domain, key

    def _holding(self, peer: Peer, key: str) -> list[AgentDomain]:
        """Domains in which a peer may lease a key: what it sees, and what it is granted."""
        granted = granted_entries(peer, self._wanted.spec.entries, key)
        places = [Place(entry.namespace, entry.storage_class) for entry in granted]
        shared = [domain for place in places if (domain := self._domains.get(place)) is not None]
        return self._visible(peer) + shared

    def _visible(self, peer: Peer) -> list[AgentDomain]:
        if peer.kind is HolderKind.POD:
            return self._domains.of_namespace(peer.namespace)
        own = self._domains.of_namespace(peer.namespace)
        return own + [domain for domain in self._domains.all() if domain not in own]

    async def _inspect(self, peer: Peer, params: InspectParams) -> InspectResult:
        survey = await self._surveyor.look(self._visible(peer))
        return inspected(survey, self._wanted.spec, params.key)

    async def _cleanup(self, peer: Peer, params: CleanupParams) -> CleanupReply:
        require_administrator(peer, "cleanup")
        if not is_key(params.key):
            raise _invalid(f"key {params.key[:80]!r} is not 64 lowercase hex digits")
        domains = self._visible(peer)
        if params.namespace:
            domains = self._domains.of_namespace(namespace_of(peer, params.namespace))
        reply = CleanupReply(CleanupStatus.ABSENT)
        for domain in domains:
            result = await self._remover.remove(domain, params.key)
            if result.failure is not None:
                raise WeightLeaseError(result.failure)
            if result.status is not CleanupStatus.ABSENT:
                reply = CleanupReply(result.status, result.freed_bytes, result.holders)
                break
        return reply


def _invalid(message: str) -> WeightLeaseError:
    return WeightLeaseError.of(Stage.CONFIGURATION, FailureCode.INVALID_CONFIG, message)
