"""The two kinds of store, as the conformance suites of stores and of runtimes open them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from agent_process import AgentProcess
from weightlease.client import AgentStore
from weightlease.store.local import LocalStore


@dataclass
class LocalWorld:
    """One domain of a `LocalStore`."""

    root: Path

    @property
    def maker(self) -> tuple[str, str]:
        return "weightlease.store.local:LocalStore", str(self.root)

    def open(self) -> LocalStore:
        return LocalStore(self.root)


@dataclass
class AgentWorld:
    """One agent; `close` ends the stores that were opened here."""

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

    def close(self) -> None:
        for store in self.opened:
            store.close()
