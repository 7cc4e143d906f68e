"""Room in a cluster: what is kept out is told, and keys that nobody manages expire."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_process import AgentProcess, wait_until
from cluster_node import cluster_environment, entry
from fake_api_server import FakeApiServer
from raw_peer import RefusedError
from small_artifact import identity
from weightlease import wire
from weightlease.api.weight_node import BlockedArtifact, WeightNodeStatus

BUDGET = 20_000


@pytest.fixture
def agent(tmp_path: Path, api: FakeApiServer) -> Iterator[AgentProcess]:
    environment = cluster_environment(api) | {
        "WEIGHTLEASE_INTERVALS__STATUS": "1",
        "WEIGHTLEASE_CAPACITY__DISK__BUDGET": str(BUDGET),
        "WEIGHTLEASE_UNMANAGED": '{"research": {"quota": "10k", "expirySeconds": 3600}}',
    }
    with AgentProcess(tmp_path, environment=environment, uid_mode=False) as started:
        api.set_spec()
        wait_until(lambda: started.get("/readyz")[0] == 200)
        yield started


def status(api: FakeApiServer) -> WeightNodeStatus:
    return WeightNodeStatus.model_validate(api.statuses[-1] if api.statuses else {})


def blocked(api: FakeApiServer) -> list[BlockedArtifact]:
    return status(api).blocked


def synced(api: FakeApiServer, generation: int) -> None:
    wait_until(lambda: status(api).observed_generation == generation)


def test_what_is_kept_out_is_told_until_there_is_room(
    agent: AgentProcess, api: FakeApiServer, payload: bytes
) -> None:
    api.set_spec(entry("first"), entry("second"))
    synced(api, 2)
    with agent.peer(token=api.add_pod("warm-first-x7k2p")) as job:
        first = job.publish(identity("first"), payload)
    api.set_spec(entry("first", key=first.key, job=""), entry("second"))
    synced(api, 3)
    with (
        agent.peer(token=api.add_pod("warm-second-x7k2p")) as job,
        pytest.raises(RefusedError) as refused,
    ):
        job.begin(identity("second"), BUDGET - 1000)
    assert refused.value.failure.code == "store_limit_exceeded"
    wait_until(lambda: blocked(api))
    (row,) = blocked(api)
    assert (row.id, row.reason, row.limit, row.needed_bytes) == (
        "team-a/second:model@",
        "InsufficientCapacity",
        "NodeBudget",
        BUDGET - 1000,
    )
    assert "would come free by deleting team-a/first" in row.message
    (root,) = status(api).roots
    assert root.budget_bytes == BUDGET
    assert root.available_bytes == BUDGET - root.used_bytes == row.available_bytes
    api.set_spec(entry("second"))
    wait_until(lambda: not blocked(api))
    with agent.peer(token=api.add_pod("warm-second-x7k2p")) as job:
        assert job.begin(identity("second"), BUDGET - 1000).status == "build"


def test_an_artifact_that_nobody_wants_any_more_is_not_kept_out(
    agent: AgentProcess, api: FakeApiServer
) -> None:
    api.set_spec(entry("first"))
    synced(api, 2)
    with (
        agent.peer(token=api.add_pod("warm-first-x7k2p")) as job,
        pytest.raises(RefusedError),
    ):
        job.begin(identity("first"), BUDGET + 1)
    wait_until(lambda: blocked(api))
    api.set_spec()
    wait_until(lambda: not blocked(api))


def test_an_unmanaged_key_has_a_quota_and_goes_when_it_has_expired(
    agent: AgentProcess, api: FakeApiServer, payload: bytes
) -> None:
    with agent.peer(token=api.add_pod("notebook", "research")) as peer:
        with pytest.raises(RefusedError) as refused:
            peer.begin(identity("big"), 10_001)
        assert refused.value.failure.details["limit"] == "UnmanagedQuota"
        key = peer.publish(identity("mine"), payload).key
        peer.release(*peer.acquire(key))
        api.set_spec(entry("first"))
        synced(api, 2)
        with agent.peer(token=api.add_pod("warm-first-x7k2p")) as job:
            job.publish(identity("first"), payload)
        api.set_spec()
        # The sweep that takes what is unwanted passes over it.
        wait_until(lambda: agent.metric("weightlease_agent_artifacts_swept_total") == 1)
        assert peer.inspect(key)[0].references == ()
        used = agent.domain("research") / "agent" / f"{key}.used"
        wait_until(used.exists)
        ready = agent.domain("research") / "artifacts" / key / "READY.json"
        for path in (ready, used):
            os.utime(path, (0, 0))
        wait_until(lambda: peer.inspect(key) == ())
        assert peer.begin(identity("mine"), len(payload)).status == "build"
        peer.call("abort", wire.Empty(), wire.Empty)
