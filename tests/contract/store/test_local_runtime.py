"""A `HostWeightRuntime` over a `LocalStore`."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime_conformance import RuntimeConformance
from store_conformance import StoreWorld
from store_worlds import LocalWorld


@pytest.fixture
def world(tmp_path: Path) -> StoreWorld:
    return LocalWorld(tmp_path / "domain")


class TestRuntimeOverLocalStore(RuntimeConformance):
    pass
