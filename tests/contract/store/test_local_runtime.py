"""A `HostWeightRuntime` over a `LocalStore`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from runtime_conformance import RuntimeConformance
from store_conformance import StoreWorld
from weightlease.store.local import LocalStore


@dataclass
class LocalWorld:
    root: Path

    @property
    def maker(self) -> tuple[str, str]:
        return "weightlease.store.local:LocalStore", str(self.root)

    def open(self) -> LocalStore:
        return LocalStore(self.root)


@pytest.fixture
def world(tmp_path: Path) -> StoreWorld:
    return LocalWorld(tmp_path / "domain")


class TestRuntimeOverLocalStore(RuntimeConformance):
    pass
