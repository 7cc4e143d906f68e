"""Stopping gracefully: replies finish, publications end, leases stay."""

from __future__ import annotations

import os

from agent_process import AgentProcess, wait_until
from small_artifact import identity


def test_a_stopping_agent_leaves_leases_and_removes_its_socket(
    agent: AgentProcess, payload: bytes
) -> None:
    peer = agent.peer()
    key = peer.publish(identity(), payload).key
    lease, fds = peer.acquire(key)
    assert agent.stop() == 0
    assert not agent.socket.exists()
    assert peer.is_dropped()
    peer.close()
    assert os.pread(fds[2], len(payload), 0) == payload
    agent.start()
    with agent.peer() as after:
        assert after.inspect(key)[0].leases == (f"uid 0 pid {os.getpid()}",)
        after.release(lease, fds)
        assert after.cleanup(key).status == "removed"


def test_a_stopping_agent_aborts_publications(agent: AgentProcess, payload: bytes) -> None:
    with agent.peer() as peer:
        peer.begin(identity(), len(payload))
        wait_until(lambda: os.listdir(agent.domain() / "tmp"))
        assert agent.stop() == 0
        assert os.listdir(agent.domain() / "tmp") == []


def test_a_stopping_agent_does_not_wait_for_idle_peers(agent: AgentProcess) -> None:
    peers = [agent.peer() for _ in range(10)]
    assert agent.stop() == 0
    for peer in peers:
        assert peer.is_dropped()
        peer.close()
