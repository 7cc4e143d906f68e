"""A real agent on a bare host, a fake API server for those in a cluster, something to publish."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_process import QUICK, AgentProcess
from fake_api_server import FakeApiServer
from small_artifact import safetensors_bytes


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    with AgentProcess(tmp_path, environment=QUICK) as started:
        yield started


@pytest.fixture
def api(tmp_path: Path) -> Iterator[FakeApiServer]:
    with FakeApiServer(tmp_path) as server:
        yield server


@pytest.fixture(scope="session")
def payload() -> bytes:
    """A safetensors file of twenty tensors."""
    return safetensors_bytes({f"t{n}": ("F32", (64,), bytes([n] * 256)) for n in range(20)})
