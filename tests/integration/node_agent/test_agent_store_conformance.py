"""`AgentStore` over a real agent keeps every promise of a `HostWeightStore`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent_process import AgentProcess
from store_conformance import StoreConformance
from weightlease.client import AgentStore


@dataclass
class AgentWorld:
    """One agent; stores opened here are closed with it."""

    agent: AgentProcess
    opened: list[AgentStore] = field(default_factory=list)

    @property
    def maker(self) -> tuple[str, str]:
        return "weightlease.client:AgentStore", str(self.agent.socket)

    @property
    def root(self) -> Path:
        return self.agent.domain()

    def open(self) -> AgentStore:
        store = AgentStore(str(self.agent.socket))
        self.opened.append(store)
        return store


class TestAgentStore(StoreConformance):
    @pytest.fixture
    def world(self, agent: AgentProcess) -> Iterator[AgentWorld]:
        world = AgentWorld(agent)
        yield world
        for store in world.opened:
            store.close()
