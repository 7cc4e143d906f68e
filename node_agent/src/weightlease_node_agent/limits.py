"""Counting what peers cost, so that one that takes too much is refused and nobody else is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager

from weightlease.errors import FailureCode, Stage, WeightLeaseError


class Quota:
    """How many of something run at once, in all and for one account."""

    def __init__(self, what: str, total: int, per_account: int) -> None:
        self._what = what
        self._total = total
        self._per_account = per_account
        self._held: Counter[str] = Counter()

    @property
    def in_use(self) -> int:
        """How many are taken."""
        return self._held.total()

    def require_room(self, account: str) -> None:
        """Refuse an account that has taken nearly all it may, before work is done for it.

        Raises:
            WeightLeaseError: as `take`.

        """
        if self._held[account] > self._per_account - self._per_account // 8:
            raise too_many(f"{account} already has {self._held[account]} {self._what}")

    def take(self, account: str, count: int = 1) -> None:
        """Take `count`; `give` returns them.

        Raises:
            WeightLeaseError: too_many_requests, retryable.

        """
        if self._held[account] + count > self._per_account:
            raise too_many(f"{account} already has {self._held[account]} {self._what}")
        if self.in_use + count > self._total:
            raise too_many(f"this node already has {self.in_use} {self._what}")
        self._held[account] += count

    def give(self, account: str, count: int = 1) -> None:
        """Return what `take` took."""
        self._held[account] -= count
        if not self._held[account]:
            del self._held[account]

    @contextmanager
    def held(self, account: str, count: int = 1) -> Iterator[None]:
        """Hold `count` while the block runs."""
        self.take(account, count)
        try:
            yield
        finally:
            self.give(account, count)


class Turns:
    """At most so many at once for one account; more of that account wait, and nobody else does."""

    def __init__(self, per_account: int) -> None:
        self._per_account = per_account
        self._turns: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def of(self, account: str) -> AsyncIterator[None]:
        """Hold one of the account's turns while the block runs."""
        turns, users = self._turns.get(account) or (asyncio.Semaphore(self._per_account), 0)
        self._turns[account] = (turns, users + 1)
        try:
            async with turns:
                yield
        finally:
            _, users = self._turns[account]
            if users > 1:
                self._turns[account] = (turns, users - 1)
            else:
                del self._turns[account]


class Strangers:
    """Connections that have not said hello: past the cap the oldest of the busiest origin goes.

    So a flood of connections pushes out its own, and a newcomer that says hello at once is served.
    """

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._waiting: dict[Hashable, tuple[str, Callable[[], None]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, identity: Hashable, origin: str, evict: Callable[[], None]) -> None:
        """Register a newcomer; `evict` ends the connection that has to go."""
        self._waiting[identity] = (origin, evict)
        if len(self._waiting) <= self._cap:
            return
        counts = Counter(origin for origin, _ in self._waiting.values())
        busiest = counts.most_common(1)[0][0]
        victim = next(key for key, (origin, _) in self._waiting.items() if origin == busiest)
        _, end = self._waiting.pop(victim)
        end()

    def remove(self, identity: Hashable) -> None:
        """Forget a connection that has said hello, or is gone."""
        self._waiting.pop(identity, None)


def too_many(message: str) -> WeightLeaseError:
    """A too_many_requests failure; trying again later can help."""
    return WeightLeaseError.of(
        Stage.ACCESS, FailureCode.TOO_MANY_REQUESTS, f"{message}; try again later", retryable=True
    )
