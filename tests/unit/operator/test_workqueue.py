"""Names are worked on once, never twice at once, and come back when they fail."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry

import fake_time
from weightlease_operator.metrics import Metrics
from weightlease_operator.workqueue import WorkQueue


def worked(
    handler: Callable[[str], Awaitable[float | None]],
    during: Callable[[WorkQueue[str]], Awaitable[None]],
) -> None:
    """Run a queue while `during` lasts."""
    fake_time.run(_worked(handler, during))


async def _worked(
    handler: Callable[[str], Awaitable[float | None]],
    during: Callable[[WorkQueue[str]], Awaitable[None]],
) -> None:
    metrics = Metrics(CollectorRegistry())
    queue = WorkQueue("artifacts", handler, metrics, workers=3, batch=0.5, base=1, cap=8)
    running = asyncio.create_task(queue.run())
    await during(queue)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_many_events_about_one_name_are_one_reconciliation() -> None:
    seen: list[str] = []

    async def handler(key: str) -> None:
        seen.append(key)

    async def during(queue: WorkQueue[str]) -> None:
        for _ in range(10):
            queue.add("a")
            queue.add("b")
        await asyncio.sleep(2)

    worked(handler, during)
    assert sorted(seen) == ["a", "b"]


def test_a_name_is_never_worked_on_twice_at_once_and_not_forgotten() -> None:
    at_once, most, runs = 0, 0, 0

    async def handler(_key: str) -> None:
        nonlocal at_once, most, runs
        at_once += 1
        most, runs = max(most, at_once), runs + 1
        await asyncio.sleep(5)
        at_once -= 1

    async def during(queue: WorkQueue[str]) -> None:
        queue.add("a")
        await asyncio.sleep(1)
        queue.add("a")
        await asyncio.sleep(20)

    worked(handler, during)
    assert (most, runs) == (1, 2)


def test_other_names_go_on_while_one_is_slow() -> None:
    seen: list[str] = []

    async def handler(key: str) -> None:
        await asyncio.sleep(100 if key == "slow" else 0)
        seen.append(key)

    async def during(queue: WorkQueue[str]) -> None:
        queue.add("slow", 0)
        queue.add("quick")
        await asyncio.sleep(5)

    worked(handler, during)
    assert seen == ["quick"]


def test_a_failure_comes_back_later_each_time_and_hurts_nobody_else() -> None:
    moments: list[float] = []
    others: list[str] = []

    async def handler(key: str) -> None:
        if key == "good":
            others.append(key)
            return
        moments.append(asyncio.get_running_loop().time())
        raise ValueError("no luck")

    async def during(queue: WorkQueue[str]) -> None:
        queue.add("bad", 0)
        await asyncio.sleep(60)
        queue.add("good")
        await asyncio.sleep(2)

    worked(handler, during)
    waits = [later - sooner for sooner, later in itertools.pairwise(moments)]
    for wait, most in zip(waits, [1, 2, 4, 8, 8, 8], strict=False):
        assert most / 2 <= wait <= most + 0.1
    assert others == ["good"]


def test_a_handler_says_when_to_come_back_and_an_event_comes_first() -> None:
    moments: list[float] = []

    async def handler(_key: str) -> float | None:
        moments.append(asyncio.get_running_loop().time())
        return 100

    async def during(queue: WorkQueue[str]) -> None:
        queue.add("a", 0)
        await asyncio.sleep(10)
        queue.add("a", 0)
        await asyncio.sleep(105)

    worked(handler, during)
    begun = moments[0]
    assert [round(moment - begun) for moment in moments] == [0, 10, 110]
