"""One hostile peer costs only itself: another one leases a thousand times beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import weightlease
from agent_process import QUICK, AgentProcess, wait_until
from forked_agent import Rights
from mortal import MORTAL
from small_artifact import identity
from weightlease.client import AgentStore
from weightlease.names import AGENT_UID

ACQUIRES, CONNECTIONS = 1000, 20
NOBODY = 65534
# Few enough that a peer which takes them all would be noticed.
DESCRIPTORS = 2048
PROGRAM = Path(__file__).parents[2] / "support" / "hostile_peer.py"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that ordinary users reach, on a disk."""
    made = Path(tempfile.mkdtemp(prefix="weightlease-hostile-"))
    made.chmod(0o755)
    os.chown(made, AGENT_UID, AGENT_UID)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def unprivileged(folder: Path) -> Iterator[AgentProcess]:
    environment = QUICK | {"WEIGHTLEASE_ALLOWED_UIDS": f"0,{NOBODY}"}
    rights = Rights(AGENT_UID, DESCRIPTORS)
    with AgentProcess(folder, environment=environment, rights=rights) as agent:
        yield agent


@contextmanager
def raging(agent: AgentProcess, key: str) -> Iterator[None]:
    """A hostile peer while the block runs."""
    command = [*MORTAL, sys.executable, str(PROGRAM), str(NOBODY), str(agent.socket), key]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as hostile:
        try:
            assert hostile.stdout is not None
            assert hostile.stdout.readline() == "raging\n"
            yield
            assert hostile.poll() is None, "it raged to the end"
        finally:
            hostile.kill()


def lease_and_release(store: AgentStore, key: str, times: int) -> int:
    for _ in range(times):
        lease = store.acquire(key)
        assert lease.key == key
        store.release(lease)
    return times


def open_descriptors(agent: AgentProcess) -> int:
    return len(os.listdir(f"/proc/{agent.pid}/fd"))


def has_dropped(agent: AgentProcess, reason: str) -> bool:
    return agent.metric("weightlease_agent_peers_dropped_total", reason=reason) > 0


@pytest.mark.timeout(240)
def test_a_hostile_peer_costs_only_itself(unprivileged: AgentProcess, payload: bytes) -> None:
    agent = unprivileged
    assert f"Uid:\t{AGENT_UID}" in Path(f"/proc/{agent.pid}/status").read_text()
    assets = {f"part-{n}.json": str(n).encode() for n in range(40)}
    with agent.peer() as peer:
        small = peer.publish(identity("small"), payload).key
        large = peer.publish(identity("large"), payload, assets).key
    with weightlease.connect(str(agent.socket)) as store:
        lease_and_release(store, small, 1)
    before = open_descriptors(agent)
    with raging(agent, large):
        done = 0
        for _ in range(CONNECTIONS):
            with weightlease.connect(str(agent.socket)) as store:
                done += lease_and_release(store, small, ACQUIRES // CONNECTIONS - 1)
                done += lease_and_release(store, large, 1)
        assert done == ACQUIRES
        for reason in ("capacity", "protocol", "send_timeout", "frame_timeout"):
            # A deadline may pass later than so many acquires take.
            wait_until(partial(has_dropped, agent, reason))
        assert not has_dropped(agent, "internal")
    with agent.peer() as peer:
        wait_until(lambda: all(row.leases == () for row in peer.inspect()))
    wait_until(lambda: open_descriptors(agent) <= before + 2)
