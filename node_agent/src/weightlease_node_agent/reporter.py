"""When the WeightNode's status is written: rarely, but at once when something has changed state.

At most one write per `status` interval plus jitter for what only moves (progress, free bytes, who
exactly leases), at once for a change of state (an artifact ready or gone, a publication begun, a
lease count between none and some), a few of those per interval, and a heartbeat.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog

from weightlease.api.weight_node import WeightNodeStatus
from weightlease.errors import WeightLeaseError
from weightlease_node_agent import __version__
from weightlease_node_agent.capacity import Capacity
from weightlease_node_agent.cluster import Cluster, ClusterError, ClusterGoneError
from weightlease_node_agent.inventory import status
from weightlease_node_agent.metrics import Metrics
from weightlease_node_agent.settings import Intervals
from weightlease_node_agent.wanted import Wanted

log = structlog.get_logger(__name__)
MAX_BURST = 5
_GAP_SECONDS = 1.0
_JITTER = 0.2


@dataclass
class Written:
    """What was written last and when; `burst` are the latest writes, all in monotonic seconds."""

    at: float
    status: WeightNodeStatus
    burst: list[float] = field(default_factory=list)


def states(of: WeightNodeStatus) -> frozenset[tuple[object, ...]]:
    """What counts as a change of state."""
    rows: set[tuple[object, ...]] = {
        (
            row.namespace,
            row.storage_class,
            row.key,
            row.state,
            row.wanted_id,
            row.manifest_sha256,
            row.lease_count > 0,
        )
        for row in of.inventory
    }
    blocked = {("blocked", row.id, row.limit, row.needed_bytes) for row in of.blocked}
    return frozenset(rows | blocked | {("generation", of.observed_generation)})


def is_due(last: Written | None, now: WeightNodeStatus, at: float, intervals: Intervals) -> bool:
    """Whether `now` is to be written at `at` (monotonic seconds)."""
    if last is None or at - last.at >= intervals.heartbeat:
        return True
    if states(last.status) != states(now):
        recent = [each for each in last.burst if at - each < intervals.status]
        return len(recent) < MAX_BURST or at - last.at >= intervals.status
    return at - last.at >= intervals.status and _content(last.status) != _content(now)


class Reporter:
    """Writes the status; `wake` says that something may have changed."""

    def __init__(
        self,
        cluster: Cluster,
        node: str,
        capacity: Capacity,
        wanted: Wanted,
        intervals: Intervals,
        metrics: Metrics,
        leads: Callable[[], bool],
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._capacity = capacity
        self._wanted = wanted
        self._intervals = intervals
        self._metrics = metrics
        self._leads = leads
        self._woken = asyncio.Event()
        self._last: Written | None = None

    def wake(self) -> None:
        """Look soon."""
        self._woken.set()

    async def run(self) -> None:
        """Report for ever."""
        while True:
            self._woken.clear()
            if self._leads() and self._wanted.spec.seen:
                await self._report()
            await asyncio.sleep(_GAP_SECONDS)
            pause = self._intervals.status * (1 + _JITTER * random.random())  # noqa: S311 - jitter
            try:
                async with asyncio.timeout(pause):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _report(self) -> None:
        try:
            view = await self._capacity.look()
        except (WeightLeaseError, OSError) as error:
            # Silence is what the operator understands; disks come back.
            self._metrics.status_writes.labels("failed").inc()
            log.warning("the stores can't be looked at", error=str(error))
            return
        current = status(
            view,
            self._wanted.spec,
            agent_version=__version__,
            reported_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        at = time.monotonic()
        if not is_due(self._last, current, at, self._intervals):
            return
        try:
            await self._cluster.patch_status(self._node, current.to_json())
        except ClusterGoneError:
            self._metrics.status_writes.labels("gone").inc()
        except ClusterError as error:
            self._metrics.status_writes.labels("failed").inc()
            log.warning("status is not written", error=str(error))
        else:
            self._metrics.status_writes.labels("written").inc()
            self._last = _written(self._last, current, at, self._intervals)


def _written(
    last: Written | None, current: WeightNodeStatus, at: float, intervals: Intervals
) -> Written:
    recent = [each for each in (last.burst if last else []) if at - each < intervals.status]
    return Written(at, current, [*recent, at])


def _content(of: WeightNodeStatus) -> dict[str, Any]:
    return of.model_dump(exclude={"reported_at"})
