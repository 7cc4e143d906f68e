"""Two agents on one node while a DaemonSet surges: one leads, both serve, nothing is lost."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_process import QUICK, AgentProcess, wait_until
from cluster_node import cluster_environment, entry
from fake_api_server import FakeApiServer
from raw_peer import RawPeer, RefusedError
from small_artifact import identity
from weightlease import wire
from weightlease.api.weight_node import WeightNodeStatus
from weightlease.client import AgentStore

LEADER = "weightlease_agent_leader"
WRITES = "weightlease_agent_status_writes_total"


class Pair:
    """The agent that is replaced and the one that replaces it, on one store and one socket path."""

    def __init__(self, folder: Path, environment: dict[str, str], *, uid_mode: bool) -> None:
        self.old = AgentProcess(folder, environment=environment, uid_mode=uid_mode)
        self.new = AgentProcess(folder, environment=environment, uid_mode=uid_mode)

    def sweep_passes(self, namespace: str = "default") -> None:
        """Return after a whole sweep of the leader that began after this call."""
        for _ in range(2):
            # What a producer that died left behind goes at the beginning of each sweep.
            key = uuid.uuid4().hex * 2
            left = self.old.domain(namespace) / "tmp" / f"{key}.1.{uuid.uuid4().hex}"
            left.mkdir()
            wait_until(lambda left=left: not left.exists())  # type: ignore[misc]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path, QUICK, uid_mode=True)
    with made.old:
        yield made
        if made.new.has_logged("listening"):
            made.new.__exit__()


def surge(pair: Pair) -> None:
    pair.new.start()


def test_one_of_two_agents_leads_and_the_other_follows_when_it_ends(pair: Pair) -> None:
    surge(pair)
    assert (pair.old.metric(LEADER), pair.new.metric(LEADER)) == (1, 0)
    assert pair.old.stop() == 0
    wait_until(lambda: pair.new.metric(LEADER) == 1)


def test_a_leader_that_is_killed_is_followed_too(pair: Pair) -> None:
    surge(pair)
    pair.old.kill()
    wait_until(lambda: pair.new.metric(LEADER) == 1)


def test_the_newer_agent_has_the_path_and_the_older_one_its_connections(
    pair: Pair, payload: bytes
) -> None:
    with pair.old.peer() as before:
        key = before.publish(identity(), payload).key
        surge(pair)
        assert pair.old.get("/readyz")[0] == 503, "the rollout sees which of them is replaced"
        with pair.new.peer() as after:
            for peer in (before, after):
                lease, fds = peer.acquire(key)
                assert os.pread(fds[2], len(payload), 0) == payload
                peer.release(lease, fds)
        assert pair.old.stop() == 0
        assert pair.new.socket.exists()
        with pair.new.peer() as after:
            after.release(*after.acquire(key))


def test_neither_agent_removes_what_the_other_one_leases(pair: Pair, payload: bytes) -> None:
    with pair.old.peer() as before:
        first = before.publish(identity("first"), payload).key
        second = before.publish(identity("second"), payload).key
        surge(pair)
        with pair.new.peer() as after:
            of_old, old_fds = before.acquire(first)
            of_new, new_fds = after.acquire(second)
            assert after.cleanup(first).status == "active_lease"
            assert before.cleanup(second).status == "active_lease"
            pair.sweep_passes()
            assert pair.old.stop() == 0
            assert after.cleanup(first).holders == (f"uid 0 pid {os.getpid()}",)
            for lease, fds in ((of_old, old_fds), (of_new, new_fds)):
                after.release(lease, fds)
                assert after.cleanup(lease.key).status == "removed"


def test_staging_of_one_agent_is_not_swept_by_the_other(pair: Pair, payload: bytes) -> None:
    with pair.old.peer() as before:
        before.publish(identity("other"), payload)
    surge(pair)
    with pair.new.peer() as after:
        after.begin(identity(), len(payload))
        pair.sweep_passes()
        after.stream("model.safetensors", payload)
        pair.sweep_passes()
        assert after.finalize(identity()).key == identity().key


def test_one_key_is_built_once_by_two_agents(pair: Pair, payload: bytes) -> None:
    with pair.old.peer() as before:
        before.begin(identity(), len(payload))
        surge(pair)
        with pair.new.peer() as after:
            with pytest.raises(RefusedError) as busy:
                after.begin(identity(), len(payload), wait=0.0)
            assert busy.value.failure.code == "active_build_timeout"
            before.stream("model.safetensors", payload)
            before.finalize(identity())
            assert after.begin(identity(), len(payload)).status == "present"


def test_a_namespace_that_the_older_agent_opened_late_is_the_newer_ones_too(
    pair: Pair, payload: bytes
) -> None:
    with pair.old.peer() as before:
        surge(pair)
        params = wire.BeginParams(identity().to_dict(), len(payload), 0.0, "disk", "late")
        before.call("begin_publication", params, wire.BeginResult)
        before.stream("model.safetensors", payload)
        before.finalize(identity())
        lease, fds = before.acquire(identity().key)
    assert pair.old.stop() == 0
    wait_until(lambda: pair.new.metric(LEADER) == 1)
    with pair.new.peer() as after:
        (row,) = after.inspect(identity().key)
        assert (row.namespace, len(row.leases)) == ("late", 1)
        after.release(lease, fds)


@pytest.mark.parametrize("versions", [(1,), (0, 1), (1, 2)], ids=["same", "older", "newer"])
def test_a_client_of_the_release_before_or_after_is_served(
    pair: Pair, versions: tuple[int, ...]
) -> None:
    with RawPeer(pair.old.socket, hello=False) as peer:
        params = wire.HelloParams(versions, "", "test")
        assert peer.call("hello", params, wire.HelloResult).version == 1


# ---- in a cluster ----


@pytest.fixture
def cluster_pair(tmp_path: Path, api: FakeApiServer) -> Iterator[Pair]:
    environment = cluster_environment(api) | {
        "WEIGHTLEASE_INTERVALS__STATUS": "1",
    }
    made = Pair(tmp_path, environment, uid_mode=False)
    with made.old:
        api.set_spec(entry())
        wait_until(lambda: made.old.get("/readyz")[0] == 200)
        with made.new:
            wait_until(lambda: made.new.get("/readyz")[0] == 200)
            yield made


def latest(api: FakeApiServer) -> WeightNodeStatus:
    return WeightNodeStatus.model_validate(api.statuses[-1] if api.statuses else {})


def test_a_canarys_artifact_made_through_one_agent_is_kept_and_told_by_the_other(
    cluster_pair: Pair, api: FakeApiServer, payload: bytes
) -> None:
    with cluster_pair.new.peer(token=api.add_pod("warm-minilm-x7k2p")) as job:
        key = job.publish(identity(), payload).key
    cluster_pair.sweep_passes("team-a")
    assert (cluster_pair.old.domain("team-a") / "artifacts" / key).is_dir()
    wait_until(lambda: [row.wanted_id for row in latest(api).inventory] == ["team-a/minilm:model@"])


def test_a_pod_that_leases_by_name_all_the_while_notices_no_replacement(
    tmp_path: Path, api: FakeApiServer, payload: bytes
) -> None:
    environment = cluster_environment(api)
    token = tmp_path / "token"
    token.write_text(api.add_pod("server-0"))
    agents = [AgentProcess(tmp_path, environment=environment, uid_mode=False) for _ in range(3)]
    done, stop = [0], threading.Event()
    failures: list[Exception] = []

    def lease_on_and_on() -> None:
        try:
            with AgentStore(str(agents[0].socket), str(token)) as kept:
                while not stop.is_set():
                    with AgentStore(str(agents[0].socket), str(token)) as fresh:
                        fresh.acquire("minilm").close()
                    kept.acquire("minilm").close()
                    done[0] += 2
        except Exception as error:  # noqa: BLE001 - told by the test's own thread
            failures.append(error)

    with contextlib.ExitStack() as stack:
        stack.enter_context(agents[0])
        api.set_spec(entry())
        wait_until(lambda: agents[0].get("/readyz")[0] == 200)
        with agents[0].peer(token=api.add_pod("warm-minilm-x7k2p")) as job:
            key = job.publish(identity(), payload).key
        api.set_spec(entry(key=key, job=""))
        wait_until(lambda: latest(api).observed_generation == 2)
        # An agent that listened before it has read its spec would be asked in this time.
        api.list_seconds = 1.0
        worker = threading.Thread(target=lease_on_and_on, daemon=True)
        worker.start()
        for old, new in itertools.pairwise(agents):
            before = done[0]
            wait_until(lambda before=before: done[0] > before + 10 or failures)  # type: ignore[misc]
            stack.enter_context(new)
            wait_until(lambda new=new: new.get("/readyz")[0] == 200)  # type: ignore[misc]
            assert old.stop() == 0
            after = done[0]
            wait_until(lambda after=after: done[0] > after + 10 or failures)  # type: ignore[misc]
        stop.set()
        worker.join(30)
    assert failures == []


def test_the_leader_alone_writes_the_status_until_it_ends(
    cluster_pair: Pair, api: FakeApiServer
) -> None:
    old, new = cluster_pair.old, cluster_pair.new
    wait_until(lambda: old.metric(WRITES, outcome="written") > 0)
    api.set_spec(entry(), entry("x", job="warm-minilm"))
    wait_until(lambda: latest(api).observed_generation == 2)
    assert new.metric(WRITES, outcome="written") == 0
    assert old.stop() == 0
    api.set_spec(entry())
    wait_until(lambda: latest(api).observed_generation == 3)
    assert new.metric(WRITES, outcome="written") > 0
