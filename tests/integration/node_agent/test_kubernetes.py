"""A real agent and the real Kubernetes client against a fake API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_process import AgentProcess, wait_until
from cluster_node import JOB_POD, cluster_environment, entry
from fake_api_server import FakeApiServer
from raw_peer import RawPeer, RefusedError
from small_artifact import identity
from weightlease import wire
from weightlease.api.weight_node import WeightNodeStatus
from weightlease.errors import Failure


@pytest.fixture
def agent(tmp_path: Path, api: FakeApiServer) -> Iterator[AgentProcess]:
    environment = cluster_environment(api) | {
        "WEIGHTLEASE_INTERVALS__STATUS": "1",
    }
    with AgentProcess(tmp_path, environment=environment, uid_mode=False) as started:
        yield started


def refusal(agent: AgentProcess, token: str) -> Failure:
    with pytest.raises(RefusedError) as refused:
        RawPeer(agent.socket, token=token)
    return refused.value.failure


def publish(agent: AgentProcess, api: FakeApiServer, payload: bytes) -> wire.FinalizeResult:
    """As the Job of the first entry."""
    wait_until(lambda: agent.get("/readyz")[0] == 200)
    with agent.peer(token=api.add_pod(JOB_POD)) as job:
        return job.publish(identity(), payload)


def status_is(api: FakeApiServer, **wanted: object) -> bool:
    """Whether the latest status has a row with these fields."""
    if not api.statuses:
        return False
    status = WeightNodeStatus.model_validate(api.statuses[-1])
    rows = [row.model_dump(mode="json") for row in status.inventory]
    return any(wanted.items() <= row.items() for row in rows)


def reported_generation(api: FakeApiServer) -> int:
    return int(api.statuses[-1]["observedGeneration"]) if api.statuses else 0


def test_a_pod_of_this_node_is_known_by_name(agent: AgentProcess, api: FakeApiServer) -> None:
    with agent.peer(token=api.add_pod("server-0")) as peer:
        assert peer.greeting is not None
        assert peer.greeting.peer == "team-a/server-0"
        assert peer.greeting.namespace == "team-a"


def test_wrong_tokens_are_refused_and_the_refusal_says_why(
    agent: AgentProcess, api: FakeApiServer
) -> None:
    assert "carries no token" in refusal(agent, "").message
    forged = refusal(agent, "a.b.forged")
    assert (forged.code, "unknown token" in forged.message) == ("unauthenticated", True)
    assert "forged" not in forged.message
    elsewhere = refusal(agent, api.add_pod("far", node="node-2"))
    assert elsewhere.code == "permission_denied"
    assert "'node-2'" in elsewhere.message
    audience = refusal(agent, api.add_pod("other", audience="vault"))
    assert (audience.code, "vault" in audience.message) == ("unauthenticated", True)


def test_a_token_is_reviewed_once_a_minute_at_most(agent: AgentProcess, api: FakeApiServer) -> None:
    token = api.add_pod("server-0")
    for _ in range(5):
        agent.peer(token=token).close()
    assert api.reviews == 1


def test_the_named_job_publishes_and_its_namespace_leases_by_name(
    agent: AgentProcess, api: FakeApiServer, payload: bytes
) -> None:
    api.set_spec(entry())
    published = publish(agent, api, payload)
    api.set_spec(entry(key=published.key, manifestSha256=published.manifest_sha256))
    with agent.peer(token=api.add_pod("server-0")) as peer:
        wait_until(lambda: status_is(api, key=published.key, wanted_id="team-a/minilm:model@"))
        for reference in ("minilm", "team-a/minilm", "minilm:model"):
            lease, fds = peer.acquire(reference=reference)
            assert lease.key == published.key
            peer.release(lease, fds)


def test_another_namespace_neither_sees_nor_leases(
    agent: AgentProcess, api: FakeApiServer, payload: bytes
) -> None:
    api.set_spec(entry())
    key = publish(agent, api, payload).key
    with agent.peer(token=api.add_pod("spy", "team-b")) as spy:
        assert spy.inspect() == ()
        with pytest.raises(RefusedError) as refused:
            spy.acquire(key)
        assert refused.value.failure.code == "local_miss"
        with pytest.raises(RefusedError) as refused:
            spy.acquire(reference="team-a/minilm")
        assert refused.value.failure.code == "permission_denied"
        with pytest.raises(RefusedError) as refused:
            spy.cleanup(key)
        assert refused.value.failure.code == "permission_denied"


def test_only_the_named_job_publishes_and_only_what_it_is_for(
    agent: AgentProcess, api: FakeApiServer
) -> None:
    api.set_spec(entry(key="f" * 64))
    wait_until(lambda: agent.get("/readyz")[0] == 200)
    codes = {}
    for pod in ("server-0", "warm-minilm-2-abcde", "warm-minilm-toolong", JOB_POD):
        with agent.peer(token=api.add_pod(pod)) as peer, pytest.raises(RefusedError) as refused:
            peer.begin(identity(), 100)
        codes[pod] = (refused.value.failure.code, refused.value.failure.retryable)
    assert codes == {
        "server-0": ("producer_unavailable", True),
        "warm-minilm-2-abcde": ("producer_unavailable", True),
        "warm-minilm-toolong": ("producer_unavailable", True),
        JOB_POD: ("identity_mismatch", False),
    }


def test_other_bytes_than_the_canarys_are_a_content_mismatch(
    agent: AgentProcess, api: FakeApiServer, payload: bytes
) -> None:
    api.set_spec(entry(key=identity().key, manifestSha256="0" * 64))
    with pytest.raises(RefusedError) as refused:
        publish(agent, api, payload)
    assert refused.value.failure.code == "content_mismatch"


def test_status_names_holders_and_follows_leases(
    agent: AgentProcess, api: FakeApiServer, payload: bytes
) -> None:
    api.set_spec(entry())
    key = publish(agent, api, payload).key
    with agent.peer(token=api.add_pod("server-0")) as peer:
        lease, fds = peer.acquire(key)
        wait_until(lambda: status_is(api, key=key, state="Ready", lease_count=1))
        status = WeightNodeStatus.model_validate(api.statuses[-1])
        assert status.inventory[0].leases[0].holder == "team-a/server-0"
        assert status.domains[0].domain_uuid == lease.domain_uuid
        assert (status.observed_generation, status.roots[0].capacity_bytes > 0) == (1, True)
        peer.release(lease, fds)
        wait_until(lambda: status_is(api, key=key, lease_count=0))


def test_what_the_spec_no_longer_names_goes_once_nobody_leases_it(
    agent: AgentProcess, api: FakeApiServer, payload: bytes
) -> None:
    api.set_spec(entry())
    key = publish(agent, api, payload).key
    with agent.peer(token=api.add_pod("server-0")) as peer:
        lease, fds = peer.acquire(key)
        api.set_spec()
        wait_until(lambda: reported_generation(api) == 2)
        assert peer.inspect(key)[0].state == "ready"
        peer.release(lease, fds)
        wait_until(lambda: peer.inspect(key) == ())
    wait_until(lambda: not status_is(api, key=key))


def test_a_canarys_artifact_stays_until_the_spec_decides(
    agent: AgentProcess, api: FakeApiServer, payload: bytes
) -> None:
    api.set_spec(entry())
    key = publish(agent, api, payload).key
    agent.kill()
    agent.start()
    wait_until(lambda: agent.get("/readyz")[0] == 200)
    with agent.peer(token=api.add_pod("server-0")) as peer:
        wait_until(lambda: status_is(api, key=key, wanted_id="team-a/minilm:model@"))
        assert peer.inspect(key)[0].references == ("team-a/minilm:model@",)
        api.set_spec(entry(key="f" * 64))
        wait_until(lambda: peer.inspect(key) == ())


def test_nothing_is_swept_while_the_spec_is_unknown(
    agent: AgentProcess, api: FakeApiServer, payload: bytes
) -> None:
    api.set_spec(entry())
    key = publish(agent, api, payload).key
    agent.kill()
    api.go_away()
    agent.start()
    assert agent.get("/readyz")[0] == 503
    swept = "weightlease_agent_artifacts_swept_total"
    wait_until(lambda: agent.metric("weightlease_agent_leader") == 1)
    assert (agent.domain("team-a") / "artifacts" / key).is_dir()
    assert agent.metric(swept) == 0
    api.come_back()
    wait_until(lambda: agent.get("/readyz")[0] == 200)
    assert (agent.domain("team-a") / "artifacts" / key).is_dir()


def test_while_the_api_server_is_away_known_pods_lease_and_nobody_publishes(
    agent: AgentProcess, api: FakeApiServer, payload: bytes
) -> None:
    api.set_spec(entry())
    key = publish(agent, api, payload).key
    known = api.add_pod("server-0")
    agent.peer(token=known).close()
    api.go_away()
    with agent.peer(token=known) as peer:
        lease, fds = peer.acquire(key)
        peer.release(lease, fds)
    stranger = refusal(agent, api.add_pod("server-1"))
    assert (stranger.code, stranger.retryable) == ("unauthenticated", True)


def test_the_watch_survives_an_expired_version(agent: AgentProcess, api: FakeApiServer) -> None:
    api.set_spec(entry())
    wait_until(lambda: reported_generation(api) == 1)
    api.expire_watches()
    api.set_spec(entry(generation=2))
    wait_until(lambda: reported_generation(api) == 2)


def test_a_name_means_the_old_generation_until_the_new_one_is_here(
    agent: AgentProcess, api: FakeApiServer, payload: bytes
) -> None:
    api.set_spec(entry())
    old = publish(agent, api, payload)
    api.set_spec(entry(generation=2, key="f" * 64))
    wait_until(lambda: reported_generation(api) == 2)
    with agent.peer(token=api.add_pod("server-0")) as peer:
        lease, fds = peer.acquire(reference="minilm")
        assert lease.key == old.key
        peer.release(lease, fds)
