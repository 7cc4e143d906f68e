"""At most one operator leads, whatever stops, hangs or comes late."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from fake_api import FakeApi
from weightlease_operator.api_errors import Unavailable
from weightlease_operator.election import Election, LeadershipLost
from weightlease_operator.kinds import LEASES
from weightlease_operator.settings import ElectionSettings

SETTINGS = ElectionSettings(
    namespace="system",
    lease_seconds=15,
    deadline_seconds=10,
    renew_seconds=0.001,
    retry_seconds=0.001,
)


class Clock:
    """Seconds since the machine's start, moved by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def candidate(api: FakeApi, clock: Clock, name: str) -> Election:
    return Election(api, SETTINGS, name, lambda: datetime(2026, 11, 30, tzinfo=UTC), clock)


def lease(api: FakeApi) -> dict[str, Any]:
    spec: dict[str, Any] = api.objects[LEASES.plural, "system", SETTINGS.name]["spec"]
    return spec


async def waits(election: Election) -> asyncio.Task[None]:
    """A candidate that has looked at the Lease, and stands by."""
    task = asyncio.create_task(election.acquire())
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert not task.done()
    return task


def no_answer(_verb: str, _plural: str, _name: str) -> None:
    raise Unavailable("no answer")


async def test_the_first_one_leads_and_the_lease_says_so(clock: Clock) -> None:
    api = FakeApi()
    first = candidate(api, clock, "a")
    assert not first.holds()
    await first.acquire()
    assert first.holds()
    assert lease(api)["holderIdentity"] == "a"
    assert lease(api)["leaseDurationSeconds"] == 15
    assert lease(api)["leaseTransitions"] == 1


async def test_another_leads_only_after_the_holder_has_stopped(clock: Clock) -> None:
    api = FakeApi()
    first, second = candidate(api, clock, "a"), candidate(api, clock, "b")
    await first.acquire()
    waiting = await waits(second)
    led = []
    for _ in range(40):
        clock.now += 0.5
        for _ in range(10):
            await asyncio.sleep(0.001)
        led.append((first.holds(), second.holds()))
    await waiting
    assert (True, True) not in led
    assert led[0] == (True, False)
    assert led[-1] == (False, True)
    assert lease(api)["leaseTransitions"] == 2


async def test_a_release_lets_the_other_take_over_at_once(clock: Clock) -> None:
    api = FakeApi()
    first, second = candidate(api, clock, "a"), candidate(api, clock, "b")
    await first.acquire()
    waiting = await waits(second)
    await first.release()
    assert not first.holds()
    await asyncio.wait_for(waiting, 5)
    assert second.holds()


async def test_a_holder_that_cannot_renew_ends_before_others_may_begin(clock: Clock) -> None:
    api = FakeApi()
    first = candidate(api, clock, "a")
    await first.acquire()
    keeping = asyncio.create_task(first.keep())
    api.before = no_answer
    await asyncio.sleep(0.02)
    assert not keeping.done()
    clock.now += 10
    assert not first.holds()
    with pytest.raises(LeadershipLost, match="in time"):
        await asyncio.wait_for(keeping, 5)


async def test_an_outage_shorter_than_the_deadline_costs_nothing(clock: Clock) -> None:
    api = FakeApi()
    first = candidate(api, clock, "a")
    await first.acquire()
    keeping = asyncio.create_task(first.keep())
    api.before = no_answer
    clock.now += 9
    await asyncio.sleep(0.02)
    api.before = lambda _verb, _plural, _name: None
    await asyncio.sleep(0.05)
    clock.now += 9
    assert first.holds()
    assert not keeping.done()
    keeping.cancel()


async def test_a_holder_that_was_stopped_for_long_finds_that_another_leads(clock: Clock) -> None:
    api = FakeApi()
    first, second = candidate(api, clock, "a"), candidate(api, clock, "b")
    await first.acquire()
    waiting = await waits(second)
    clock.now += 60
    assert not first.holds(), "its first write after the stop is refused"
    await asyncio.wait_for(waiting, 5)
    with pytest.raises(LeadershipLost, match="b leads"):
        await asyncio.wait_for(first.keep(), 5)


async def test_a_process_of_the_same_pod_goes_on_at_once(clock: Clock) -> None:
    api = FakeApi()
    await candidate(api, clock, "a").acquire()
    await asyncio.wait_for(candidate(api, clock, "a").acquire(), 5)
    assert lease(api)["leaseTransitions"] == 1


async def test_of_two_that_see_a_free_lease_one_leads(clock: Clock) -> None:
    api = FakeApi()
    both = [candidate(api, clock, name) for name in "ab"]
    done, waiting = await asyncio.wait(
        [asyncio.create_task(each.acquire()) for each in both],
        return_when=asyncio.FIRST_COMPLETED,
    )
    await asyncio.sleep(0.02)
    assert len(done) == 1
    assert [each.holds() for each in both].count(True) == 1
    for task in waiting:
        task.cancel()


def test_times_that_would_let_two_lead_are_refused() -> None:
    with pytest.raises(ValidationError, match="must be less than"):
        ElectionSettings(lease_seconds=10, deadline_seconds=10)
