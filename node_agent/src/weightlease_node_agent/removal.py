"""Removing artifacts: on request, and those that nothing wants any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

import structlog

from weightlease.reports import CleanupResult, CleanupStatus, InventoryState
from weightlease_node_agent.capacity_settings import Unmanaged
from weightlease_node_agent.domains import AgentDomain, Domains, Place
from weightlease_node_agent.executor import Run
from weightlease_node_agent.leases import Leases
from weightlease_node_agent.pins import Pins
from weightlease_node_agent.records import UNMANAGED
from weightlease_node_agent.survey import Found, Survey
from weightlease_node_agent.wanted import Spec

log = structlog.get_logger(__name__)
Keeps = Callable[[Found], bool]


class Remover:
    """Removes one artifact, if nobody leases or builds it."""

    def __init__(
        self, leases: Leases, pins: Pins, run: Run, on_change: Callable[[], None] = lambda: None
    ) -> None:
        self._leases = leases
        self._pins = pins
        self._run = run
        self._on_change = on_change

    async def remove(self, domain: AgentDomain, key: str) -> CleanupResult:
        """Never waits; the result names the holders in the way."""
        await self._leases.probe_artifact(domain, key)
        self._pins.close_idle(at_once=lambda pin: pin.domain is domain and pin.key == key)
        result = await self._run(domain.store.cleanup, key)
        if result.status is CleanupStatus.REMOVED:
            await self._run(domain.records.remove, key)
            log.info("artifact removed", key=key, namespace=domain.place.namespace)
            self._on_change()
        holders = tuple(str(record.holder) for record in self._leases.of(domain, key))
        if result.status is CleanupStatus.ACTIVE_LEASE and holders:
            return CleanupResult(result.status, result.freed_bytes, holders, result.failure)
        return result


async def remove_unwanted(
    survey: Survey, spec: Spec, keeps: Keeps, domains: Domains, remover: Remover
) -> list[str]:
    """Remove what the spec no longer names; the keys that went."""
    removed = []
    for found in unwanted(survey.found, spec, keeps):
        domain = domains.get(found.place)
        if domain is None:
            continue
        result = await remover.remove(domain, found.key)
        if result.status is CleanupStatus.REMOVED:
            removed.append(found.key)
        elif result.failure is not None:
            log.warning("unwanted artifact stays", key=found.key, failure=str(result.failure))
        await asyncio.sleep(0)
    return removed


def keep_unmanaged(opened: Mapping[str, Unmanaged], now: float) -> Keeps:
    """Keeps a key that was published without an entry until it expires; `now` since the epoch."""

    def keeps(found: Found) -> bool:
        terms = opened.get(found.place.namespace)
        if terms is None or UNMANAGED not in dict(found.made_for):
            return False
        return now - found.last_used < terms.expiry_seconds

    return keeps


def unwanted(found: Iterable[Found], spec: Spec, keeps: Keeps = lambda _: False) -> list[Found]:
    """Artifacts that no entry names and no name still means.

    Nothing is unwanted unless the spec has been seen and is current. An artifact made for an entry
    that has no key yet stays: it may be the canary's. One of an earlier generation stays until the
    entry's key is here, because the name means it until then. What is leased stays too, and what
    `keeps` says.
    """
    if not spec.may_remove:
        return []
    candidates = list(found)
    ready = ready_keys(candidates)
    return [
        each
        for each in candidates
        if each.state is InventoryState.READY
        and not each.leases
        and not keeps(each)
        and not refers_to(each, spec, ready)
    ]


def ready_keys(found: Iterable[Found]) -> set[tuple[Place, str]]:
    """What can be leased, by where it is."""
    return {
        (each.place, each.key)
        for each in found
        if each.state is InventoryState.READY and not each.denied
    }


def refers_to(found: Found, spec: Spec, ready: set[tuple[Place, str]]) -> bool:
    """Whether an entry names an artifact, may come to name it, or still means it."""
    made_for = dict(found.made_for)
    for entry in spec.entries:
        place = Place(entry.namespace, entry.storage_class)
        if place != found.place:
            continue
        if entry.key == found.key:
            return True
        generation = made_for.get(entry.id)
        if generation is None:
            continue
        if not entry.key or (generation < entry.generation and (place, entry.key) not in ready):
            return True
    return False
