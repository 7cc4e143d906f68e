"""A queue of names to reconcile.

A name is in the queue once, however often it is added; it is never worked on twice at once; what is
added meanwhile is worked on afterwards. A failure comes back after a wait that doubles; so does
nothing else. Time is the event loop's.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import structlog

from weightlease_operator.api_errors import Conflict
from weightlease_operator.metrics import Metrics

K = TypeVar("K")
_log = structlog.get_logger(__name__)


class WorkQueue(Generic[K]):
    """`handler` takes a name and returns in how many seconds to come back, None for never."""

    def __init__(
        self,
        name: str,
        handler: Callable[[K], Awaitable[float | None]],
        metrics: Metrics,
        *,
        workers: int,
        batch: float,
        base: float,
        cap: float,
    ) -> None:
        self._name, self._handler, self._metrics = name, handler, metrics
        self._workers, self._batch, self._base, self._cap = workers, batch, base, cap
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._running: set[K] = set()
        self._failures: dict[K, int] = {}
        self._added = 0
        self._changed = asyncio.Event()

    def add(self, key: K, delay: float | None = None) -> None:
        """Work on `key` after `delay`, by default after a moment in which more events may come."""
        wait = self._batch if delay is None else delay
        due = asyncio.get_running_loop().time() + wait
        if due >= self._due.get(key, float("inf")):
            return
        self._due[key] = due
        self._added += 1
        heapq.heappush(self._heap, (due, self._added, key))
        self._depth()
        self._changed.set()

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._next()
            self._running.add(key)
            try:
                await self._handle(key)
            finally:
                self._running.discard(key)
                self._changed.set()

    async def _next(self) -> K:
        while True:
            self._changed.clear()
            wait = None
            now = asyncio.get_running_loop().time()
            held_back = []
            try:
                while self._heap:
                    due, _, key = self._heap[0]
                    if self._due.get(key) != due:  # added again for an earlier time
                        heapq.heappop(self._heap)
                    elif due > now:
                        wait = due - now
                        break
                    elif key in self._running:
                        held_back.append(heapq.heappop(self._heap))
                    else:
                        heapq.heappop(self._heap)
                        del self._due[key]
                        self._depth()
                        return key
            finally:
                for item in held_back:
                    heapq.heappush(self._heap, item)
            await self._wait(wait)

    async def _wait(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _handle(self, key: K) -> None:
        outcome = "success"
        with self._metrics.reconcile_seconds.labels(queue=self._name).time():
            try:
                again = await self._handler(key)
            except Exception as error:  # noqa: BLE001 - one bad object must not stop the others
                outcome = "conflict" if isinstance(error, Conflict) else "error"
                again = self._backoff(key)
                _log.warning(
                    "reconciliation failed",
                    queue=self._name,
                    key=str(key),
                    retry_seconds=round(again, 1),
                    error=f"{type(error).__name__}: {error}",
                    exc_info=None if outcome == "conflict" else error,
                )
            else:
                self._failures.pop(key, None)
        self._metrics.reconciles.labels(queue=self._name, outcome=outcome).inc()
        if again is not None:
            self.add(key, again)

    def _backoff(self, key: K) -> float:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        wait = min(self._cap, self._base * 2.0 ** min(failures, 32))
        return wait * random.uniform(0.5, 1.0)  # noqa: S311 - spreads retries, guards nothing

    def _depth(self) -> None:
        self._metrics.queue_depth.labels(queue=self._name).set(len(self._due))
