"""Donors of small models on a fake device, each with its socket in a private folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from donors import RunningDonor


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A forked child has no pool of threads, and torch would wait for it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A socket path in a private directory."""
    folder = tmp_path / "weights"
    folder.mkdir(mode=0o700)
    return folder / "model.sock"


@pytest.fixture
def donate(place: Path) -> Iterator[Callable[..., RunningDonor]]:
    """Starts donors; every one is stopped at the end."""
    running: list[RunningDonor] = []

    def start(*arguments: object, **choices: object) -> RunningDonor:
        donor = RunningDonor(place, *arguments, **choices)  # type: ignore[arg-type]
        running.append(donor)
        return donor

    yield start
    for donor in running:
        donor.end()
