from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sample_producer import SampleProducer, fine_tune
from weightlease.store import failpoints
from weightlease.store.failpoints import Point, Term
from weightlease.store.local import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "domain")


@pytest.fixture
def root(store: LocalStore) -> Path:
    return Path(store.root)


@pytest.fixture
def key(store: LocalStore) -> str:
    """The key of an artifact that is published in `store`."""
    lease = store.get_or_build(SampleProducer()).lease
    assert lease is not None
    lease.close()
    return fine_tune(0).key


@pytest.fixture
def fail_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the given failpoints raise EIO."""

    def arm(*points: Point) -> None:
        monkeypatch.setattr(failpoints, "_terms", dict.fromkeys(points, Term.ERROR))

    return arm
