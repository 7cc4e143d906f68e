"""Quotas and the crowd before hello."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from weightlease.errors import FailureCode, WeightLeaseError
from weightlease_node_agent.limits import Quota, Strangers, Turns


def test_an_account_gets_its_share_and_no_more() -> None:
    quota = Quota("things", 10, 2)
    quota.take("a", 2)
    with pytest.raises(WeightLeaseError) as refused:
        quota.take("a")
    assert refused.value.failure.code is FailureCode.TOO_MANY_REQUESTS
    assert refused.value.failure.retryable
    quota.take("b")
    quota.give("a", 2)
    with quota.held("a", 2):
        assert quota.in_use == 3
    assert quota.in_use == 1


def test_all_accounts_together_stay_below_the_total() -> None:
    quota = Quota("things", 3, 2)
    quota.take("a", 2)
    quota.take("b")
    with pytest.raises(WeightLeaseError):
        quota.take("c")


def test_a_flood_pushes_out_its_own_oldest_connection() -> None:
    ended: list[str] = []
    strangers = Strangers(3)
    for name, origin in (("good", "g"), ("bad1", "b"), ("bad2", "b"), ("bad3", "b"), ("bad4", "b")):
        strangers.add(name, origin, partial(ended.append, name))
    assert ended == ["bad1", "bad2"]
    assert len(strangers) == 3


def test_who_has_said_hello_is_no_stranger() -> None:
    ended: list[str] = []
    strangers = Strangers(1)
    strangers.add("first", "x", lambda: ended.append("first"))
    strangers.remove("first")
    strangers.add("second", "x", lambda: ended.append("second"))
    assert ended == []


def test_an_account_that_has_nearly_all_its_share_is_refused_before_the_work() -> None:
    quota = Quota("things", 100, 16)
    quota.take("a", 14)
    quota.require_room("a")
    quota.take("a")
    with pytest.raises(WeightLeaseError) as refused:
        quota.require_room("a")
    assert refused.value.failure.retryable
    quota.require_room("b")


async def test_an_account_takes_turns_and_others_need_not_wait_for_it() -> None:
    turns = Turns(2)
    running: list[str] = []
    three, end = asyncio.Event(), asyncio.Event()

    async def work(account: str) -> None:
        async with turns.of(account):
            running.append(account)
            if len(running) == 3:
                three.set()
            await end.wait()

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        for account in ("a", "a", "a", "b"):
            group.create_task(work(account))
        await three.wait()
        assert sorted(running) == ["a", "a", "b"]
        end.set()
    assert sorted(running) == ["a", "a", "a", "b"]


async def test_a_turn_that_fails_or_is_given_up_is_given_back() -> None:
    turns = Turns(1)
    with pytest.raises(ValueError, match="broken"):
        async with turns.of("a"):
            raise ValueError("broken")
    async with turns.of("a"):
        waiting = asyncio.create_task(turns.of("a").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with asyncio.timeout(10), turns.of("a"):
        pass
