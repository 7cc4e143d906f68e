"""Room for publications: one ledger for all domains of this agent, asked before the first byte.

Admission is one at a time: look at the disks, decide by `ledger`, reserve. The ledger knows no
other agent of the node; two of them overlap for the seconds of an update alone, and the filesystem
is asked each time anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog

from weightlease.api.weight_node import BlockedArtifact, CapacityLimit
from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.names import StorageClass
from weightlease.reasons import Reason
from weightlease.reports import CleanupStatus
from weightlease_node_agent.capacity_settings import CapacitySettings
from weightlease_node_agent.domains import Domains
from weightlease_node_agent.ledger import (
    Books,
    Claim,
    Ledger,
    Refusal,
    Room,
    excess,
    refusal,
    room_of,
)
from weightlease_node_agent.metrics import RoomMetrics
from weightlease_node_agent.relief import advice, counting_for, enough, evictable
from weightlease_node_agent.removal import Remover, ready_keys
from weightlease_node_agent.settings import Settings
from weightlease_node_agent.survey import Found, Survey, Surveyor
from weightlease_node_agent.wanted import Wanted

log = structlog.get_logger(__name__)
_MAX_MESSAGE = 1024
_CODES = {
    CapacityLimit.ARTIFACT: FailureCode.ARTIFACT_TOO_LARGE,
    CapacityLimit.NAMESPACE_QUOTA: FailureCode.STORE_LIMIT_EXCEEDED,
    CapacityLimit.UNMANAGED_QUOTA: FailureCode.STORE_LIMIT_EXCEEDED,
    CapacityLimit.NODE_BUDGET: FailureCode.STORE_LIMIT_EXCEEDED,
    CapacityLimit.FREE_SPACE: FailureCode.INSUFFICIENT_CAPACITY,
    CapacityLimit.FREE_INODES: FailureCode.INSUFFICIENT_CAPACITY,
    CapacityLimit.MEMORY: FailureCode.INSUFFICIENT_CAPACITY,
}


@dataclass(frozen=True)
class CapacityView:
    """What a look has found and what it means for room."""

    survey: Survey = field(default_factory=Survey)
    books: Books = field(default_factory=Books)
    settings: CapacitySettings = field(default_factory=CapacitySettings)
    evictable: tuple[Found, ...] = ()
    blocked: tuple[BlockedArtifact, ...] = ()

    @property
    def rooms(self) -> list[Room]:
        """Every class in figures."""
        return [
            room_of(self.books, root, self.settings, self.evictable) for root in self.survey.roots
        ]


class Capacity:
    """Admits publications; `managed` where a WeightNode says what is referred to."""

    def __init__(
        self,
        settings: Settings,
        surveyor: Surveyor,
        domains: Domains,
        wanted: Wanted,
        remover: Remover,
        metrics: RoomMetrics,
        *,
        managed: bool,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings.capacity
        self._opened = settings.unmanaged
        self._surveyor = surveyor
        self._domains = domains
        self._wanted = wanted
        self._remover = remover
        self._metrics = metrics
        self._managed = managed
        self._on_change = on_change
        self._ledger = Ledger()
        self._blocked: dict[str, Claim] = {}
        self._one = asyncio.Lock()

    async def reserve(self, claim: Claim) -> int:
        """Promise a publication its bytes, making room first where that is allowed.

        The number is for `end`.

        Raises:
            WeightLeaseError: artifact_too_large, store_limit_exceeded or insufficient_capacity,
                retryable, with needed and available bytes and the limit in the details.

        """
        async with self._one:
            await self._admit(claim)
            self._blocked.pop(claim.entry_id, None)
            return self._ledger.reserve(claim)

    async def make_room(self, claim: Claim) -> None:
        """Make room where that is allowed, without a promise; raises as `reserve`."""
        async with self._one:
            await self._admit(claim)

    def end(self, reservation: int) -> None:
        """The publication is over."""
        self._ledger.end(reservation)

    async def relieve(self) -> None:
        """Evict until every class keeps its limits again, whoever filled the disk."""
        if not self._settings.evict:
            return
        async with self._one:
            view = await self.look()
            for storage_class in view.books.roots:
                over = excess(view.books, storage_class, self._settings)
                await self._evict(_until(view.evictable, storage_class, over))

    async def look(self) -> CapacityView:
        """The state of every domain, every account, and what is kept out."""
        since = self._ledger.look_begins()
        survey = await self._surveyor.look()
        books = self._ledger.books(survey, since)
        free = evictable(survey.found, self._wanted.spec, managed=self._managed)
        blocked = self._still_blocked(survey, books)
        self._blocked = {claim.entry_id: claim for claim, _ in blocked}
        told = tuple(
            _row(claim, refused, self._told(claim, refused, survey.found, free))
            for claim, refused in blocked
        )
        return CapacityView(survey, books, self._settings, tuple(free), told)

    async def _admit(self, claim: Claim) -> None:
        since = self._ledger.look_begins()
        view = await self.look()
        self._ledger.forget_ended(since)
        refused = refusal(view.books, claim, self._settings, self._opened)
        if refused is not None and self._settings.evict:
            helping = counting_for(refused, claim, view.evictable)
            await self._evict(enough(helping, refused.shortfall))
            view = await self.look()
            refused = refusal(view.books, claim, self._settings, self._opened)
        if refused is None:
            return
        message = self._told(claim, refused, view.survey.found, list(view.evictable))
        self._metrics.refused.labels(str(refused.limit)).inc()
        log.warning("no room", key=claim.key, entry=claim.entry_id, limit=refused.limit)
        if claim.entry_id:
            self._blocked[claim.entry_id] = claim
            self._on_change()
        raise WeightLeaseError.of(
            Stage.CAPACITY,
            _CODES[refused.limit],
            message,
            retryable=True,
            needed_bytes=refused.needed,
            available_bytes=refused.available,
            limit=str(refused.limit),
        )

    def _still_blocked(self, survey: Survey, books: Books) -> list[tuple[Claim, Refusal]]:
        entries = {entry.id: entry for entry in self._wanted.spec.entries}
        ready = ready_keys(survey.found)
        found = []
        for claim in self._blocked.values():
            entry = entries.get(claim.entry_id)
            if entry is None or (claim.place, entry.key or claim.key) in ready:
                continue
            refused = refusal(books, claim, self._settings, self._opened)
            if refused is not None:
                found.append((claim, refused))
        return found

    def _told(
        self, claim: Claim, refused: Refusal, found: Iterable[Found], free: list[Found]
    ) -> str:
        return advice(refused, claim, found, free, evicts=self._settings.evict)[:_MAX_MESSAGE]

    async def _evict(self, chosen: Iterable[Found]) -> None:
        for found in chosen:
            domain = self._domains.get(found.place)
            if domain is None:
                continue
            result = await self._remover.remove(domain, found.key)
            if result.status is CleanupStatus.REMOVED:
                name = str(found.place.storage_class)
                self._metrics.evicted.labels(name).inc()
                self._metrics.evicted_bytes.labels(name).inc(result.freed_bytes)
                log.info("artifact evicted", key=found.key, namespace=found.place.namespace)


def _until(free: Iterable[Found], storage_class: StorageClass, over: int) -> list[Found]:
    """The first of a class that free `over` bytes, or all: some room is better than none."""
    chosen, freed = [], 0
    for each in free:
        if freed >= over:
            break
        if each.place.storage_class is storage_class:
            chosen.append(each)
            freed += each.size_bytes
    return chosen


def _row(claim: Claim, refused: Refusal, message: str) -> BlockedArtifact:
    return BlockedArtifact(
        id=claim.entry_id,
        namespace=claim.place.namespace,
        storage_class=claim.place.storage_class,
        key=claim.key,
        reason=Reason.INSUFFICIENT_CAPACITY,
        limit=refused.limit,
        needed_bytes=refused.needed,
        available_bytes=refused.available,
        message=message,
    )
