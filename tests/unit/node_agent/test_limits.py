"""Quotas and the crowd before hello."""

from __future__ import annotations

from functools import partial

import pytest

from weightlease.errors import FailureCode, WeightLeaseError
from weightlease_node_agent.limits import Quota, Strangers


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
