"""An operator whose lists hang says so, and one that nobody keeps in the lead ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

import fake_time
from fake_api import FakeApi
from weightlease_operator.election import LeadershipLost
from weightlease_operator.gateway import Gateway
from weightlease_operator.kinds import Kind
from weightlease_operator.metrics import Metrics
from weightlease_operator.settings import Settings
from weightlease_operator.wiring import Operator, end_process

RESYNC = 300.0


class Listing(FakeApi):
    """An API whose lists are empty, as long as `answers` says so; then they hang."""

    def __init__(self, answers: Callable[[], bool]) -> None:
        super().__init__()
        self.lists = 0
        self._answers = answers

    async def list(self, kind: Kind) -> tuple[list[dict[str, Any]], str]:
        self.lists += 1
        if not self._answers():
            await asyncio.Event().wait()
        return [], "1"


async def alive_after(api: Listing, seconds: float) -> bool:
    """What /healthz would say after the first round, and `seconds` of further ones."""
    settings = Settings(resync_seconds=RESYNC)
    operator = Operator(cast(Gateway, api), settings, Metrics(CollectorRegistry()))
    await operator._first_round()
    rounds = asyncio.create_task(operator._rounds())
    await asyncio.sleep(seconds)
    found = operator._is_alive()
    rounds.cancel()
    return found


def test_rounds_that_end_keep_an_operator_alive() -> None:
    api = Listing(lambda: True)
    assert fake_time.run(alive_after(api, 20 * RESYNC))
    assert api.lists > 20


@pytest.mark.parametrize(("rounds", "alive"), [(2, True), (5, False)])
def test_an_operator_whose_rounds_hang_is_not_alive(rounds: int, alive: bool) -> None:
    api = Listing(lambda: api.lists < 8)
    assert fake_time.run(alive_after(api, rounds * RESYNC)) is alive


async def lose() -> None:
    raise LeadershipLost("b leads")


async def break_down() -> None:
    raise RuntimeError("not foreseen")


async def be_cancelled() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("keep", [lose, break_down, be_cancelled])
async def test_whatever_ends_the_keeper_of_the_lease_ends_the_process(
    keep: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    keeper = asyncio.create_task(keep())
    keeper.add_done_callback(end_process)
    await asyncio.wait([keeper])
    await asyncio.sleep(0)
    assert codes == [1]
