"""A `HostWeightRuntime` over a real agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_process import AgentProcess
from runtime_conformance import RuntimeConformance
from sample_producer import fine_tune
from store_worlds import AgentWorld
from weightlease.client import connect
from weightlease.errors import FailureCode
from weightlease.runtime import (
    HostWeightRuntime,
    ResolutionOutcome,
    RuntimeMode,
    RuntimePolicy,
)


class TestRuntimeOverAgentStore(RuntimeConformance):
    @pytest.fixture
    def world(self, agent: AgentProcess) -> Iterator[AgentWorld]:
        world = AgentWorld(agent)
        yield world
        world.close()


@pytest.mark.parametrize(
    ("mode", "outcome"),
    [
        (RuntimeMode.PREFERRED, ResolutionOutcome.CANONICAL_FALLBACK),
        (RuntimeMode.REQUIRED, ResolutionOutcome.FAILED),
    ],
)
def test_an_agent_that_is_away_ends_as_the_mode_says(
    tmp_path: Path, mode: RuntimeMode, outcome: ResolutionOutcome
) -> None:
    away = HostWeightRuntime(lambda: connect(str(tmp_path / "no.sock")), RuntimePolicy(mode))
    report = away.resolve(lambda: fine_tune(0)).report
    assert report.outcome is outcome
    assert report.failure is not None
    assert (report.failure.code, report.failure.retryable) == (
        FailureCode.DOMAIN_UNAVAILABLE,
        True,
    )
