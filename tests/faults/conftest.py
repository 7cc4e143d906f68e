from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from weightlease.store.local import LocalStore


@pytest.fixture
def new_root(tmp_path: Path) -> Callable[[], Path]:
    """Roots of fresh, initialised domains."""
    count = iter(range(10_000))

    def make() -> Path:
        root = tmp_path / f"domain-{next(count)}"
        LocalStore(root)
        return root

    return make
