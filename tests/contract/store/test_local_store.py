"""`LocalStore` keeps the promises of every store."""

from __future__ import annotations

from pathlib import Path

import pytest

from store_conformance import StoreConformance, StoreWorld
from store_worlds import LocalWorld


@pytest.fixture
def world(tmp_path: Path) -> StoreWorld:
    return LocalWorld(tmp_path / "domain")


class TestLocalStore(StoreConformance):
    def test_an_inspection_names_its_domain(self, world: LocalWorld) -> None:
        # An agent's peers see several domains at once, so this is no promise of every store.
        store = world.open()
        assert store.inspect().domain_uuid == store.domain.uuid
