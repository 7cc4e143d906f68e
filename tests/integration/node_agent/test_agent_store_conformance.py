"""`AgentStore` over a real agent keeps every promise of a `HostWeightStore`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent_process import AgentProcess
from store_conformance import StoreConformance
from store_worlds import AgentWorld


class TestAgentStore(StoreConformance):
    @pytest.fixture
    def world(self, agent: AgentProcess) -> Iterator[AgentWorld]:
        world = AgentWorld(agent)
        yield world
        world.close()
