"""A store that is damaged under a running agent costs those who use it, and nobody else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_process import AgentProcess, wait_until
from cluster_node import cluster_environment, entry
from fake_api_server import FakeApiServer
from raw_peer import RawPeer, RefusedError
from small_artifact import identity
from weightlease import wire
from weightlease.errors import Failure


@pytest.fixture
def cluster_agent(tmp_path: Path, api: FakeApiServer) -> Iterator[AgentProcess]:
    environment = cluster_environment(api) | {
        "WEIGHTLEASE_INTERVALS__STATUS": "1",
        "WEIGHTLEASE_INTERVALS__HEARTBEAT": "1",
    }
    with AgentProcess(tmp_path, environment=environment, uid_mode=False) as started:
        yield started


def refusal(peer: RawPeer) -> Failure:
    with pytest.raises(RefusedError) as refused:
        peer.acquire(identity().key)
    return refused.value.failure


def test_a_lease_that_cannot_be_written_is_refused_and_the_connection_goes_on(
    agent: AgentProcess, payload: bytes
) -> None:
    leases = agent.domain() / "leases"
    with agent.peer() as peer:
        peer.publish(identity(), payload)
        leases.rename(leases.with_name("elsewhere"))
        failure = refusal(peer)
        assert (failure.code, failure.retryable) == ("domain_unavailable", True)
        leases.with_name("elsewhere").rename(leases)
        lease, fds = peer.acquire(identity().key)
        peer.release(lease, fds)


def test_a_fifo_in_a_files_place_hangs_nobody(agent: AgentProcess, payload: bytes) -> None:
    with agent.peer() as peer:
        key = peer.publish(identity(), payload).key
        lease, fds = peer.acquire(key)
        peer.release(lease, fds)
        file = agent.domain() / "artifacts" / key / "model.safetensors"
        file.parent.chmod(0o755)
        file.unlink()
        os.mkfifo(file, 0o444)
        assert refusal(peer).code == "domain_unavailable"
        assert [entry.key for entry in peer.inspect()] == [key]
    assert agent.stop() == 0


def test_an_agent_whose_root_has_gone_is_alive_and_not_ready(
    agent: AgentProcess, payload: bytes
) -> None:
    with agent.peer() as peer:
        peer.publish(identity(), payload)
    agent.root.rename(agent.root.with_name("elsewhere"))
    status, problems = agent.get("/readyz")
    assert (status, str(agent.root / "disk") in problems) == (503, True)
    assert agent.get("/healthz")[0] == 200
    assert agent.get("/metrics")[0] == 200
    agent.root.with_name("elsewhere").rename(agent.root)
    assert agent.get("/readyz")[0] == 200


def test_one_namespaces_broken_store_neither_ends_the_agent_nor_hides_the_others(
    cluster_agent: AgentProcess, api: FakeApiServer, payload: bytes
) -> None:
    agent, pid = cluster_agent, cluster_agent.pid
    api.set_spec(entry(namespace="team-a"), entry(namespace="team-b"))
    wait_until(lambda: agent.get("/readyz")[0] == 200)
    for namespace in ("team-a", "team-b"):
        token = api.add_pod("warm-minilm-x7k2p", namespace=namespace)
        with agent.peer(token=token) as job:
            job.publish(identity(), payload)
    wait_until(lambda: namespaces(api) == ["team-a", "team-b"])
    broken = agent.domain("team-b") / "artifacts"
    broken.rename(broken.with_name("elsewhere"))
    wait_until(lambda: namespaces(api) == ["team-a"])
    moment = reported(api)["reportedAt"]
    wait_until(lambda: reported(api)["reportedAt"] > moment)
    assert agent.metric("weightlease_agent_artifacts", state="ready", storage_class="disk") == 1
    with agent.peer(token=api.add_pod("server", namespace="team-a")) as server:
        lease, fds = server.acquire(identity().key)
        server.release(lease, fds)
        request = server.send("inspect", wire.InspectParams())
        assert server.receive().id == request
    broken.with_name("elsewhere").rename(broken)
    wait_until(lambda: namespaces(api) == ["team-a", "team-b"])
    assert agent.pid == pid


def reported(api: FakeApiServer) -> dict[str, Any]:
    return api.statuses[-1] if api.statuses else {}


def namespaces(api: FakeApiServer) -> list[str]:
    return sorted(entry["namespace"] for entry in reported(api).get("inventory", []))
