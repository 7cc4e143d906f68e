"""Room is promised before the first byte, and a full disk loses nothing."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from agent_process import QUICK, AgentProcess, wait_until
from raw_peer import RawPeer, RefusedError
from small_artifact import identity, safetensors_bytes
from weightlease import wire
from weightlease.errors import Failure

KIB = 1024


def tensor_file(kib: int) -> bytes:
    return safetensors_bytes({"t": ("U8", (kib * KIB,), os.urandom(kib * KIB))})


def agent_with(folder: Path, **capacity: str) -> AgentProcess:
    variables = {f"WEIGHTLEASE_CAPACITY__{name}": value for name, value in capacity.items()}
    return AgentProcess(folder, environment=QUICK | variables)


def refusal(peer: RawPeer, model: str, total: int) -> Failure:
    with pytest.raises(RefusedError) as refused:
        peer.begin(identity(model), total, wait=0.0)
    return refused.value.failure


def names(agent: AgentProcess, folder: str) -> list[str]:
    return os.listdir(agent.domain() / folder)


def test_what_does_not_fit_is_refused_before_its_first_byte(tmp_path: Path) -> None:
    with agent_with(tmp_path, DISK__BUDGET="300Ki") as agent, agent.peer() as peer:
        kept = peer.publish(identity("a"), tensor_file(100)).key
        failure = refusal(peer, "b", 250 * KIB)
        assert (failure.stage, failure.code, failure.retryable) == (
            "capacity",
            "store_limit_exceeded",
            True,
        )
        assert failure.details["needed_bytes"] == 250 * KIB
        assert 150 * KIB < failure.details["available_bytes"] < 200 * KIB
        assert failure.details["limit"] == "NodeBudget"
        assert "agent.capacity.disk.budget" in failure.message
        assert names(agent, "tmp") == []
        refused = "weightlease_agent_capacity_refused_total"
        assert agent.metric(refused, limit="NodeBudget") == 1
        peer.publish(identity("c"), tensor_file(150))
        assert kept in names(agent, "artifacts")


def test_a_refused_producer_leaves_its_key_to_others(tmp_path: Path) -> None:
    with agent_with(tmp_path, DISK__BUDGET="100Ki") as agent, agent.peer() as peer:
        assert refusal(peer, "a", 200 * KIB).code == "store_limit_exceeded"
        with agent.peer() as other:
            other.publish(identity("a"), tensor_file(10))


def test_two_publications_that_fit_alone_are_not_both_begun(tmp_path: Path) -> None:
    with agent_with(tmp_path, DISK__BUDGET="1Mi") as agent, agent.peer() as first:
        first.begin(identity("a"), 600 * KIB)
        with agent.peer() as second:
            assert refusal(second, "b", 600 * KIB).details["limit"] == "NodeBudget"
            assert agent.metric("weightlease_agent_reserved_bytes") == 600 * KIB
            first.call("abort", wire.Empty(), wire.Empty)
            assert second.begin(identity("b"), 600 * KIB).status == "build"


def test_a_producer_that_dies_gives_its_reservation_back(tmp_path: Path) -> None:
    with agent_with(tmp_path, DISK__BUDGET="1Mi") as agent, agent.peer() as first:
        first.begin(identity("a"), 900 * KIB)
        first.close()
        wait_until(lambda: agent.metric("weightlease_agent_reserved_bytes") == 0)
        with agent.peer() as second:
            assert second.begin(identity("b"), 900 * KIB).status == "build"


def test_what_lies_there_counts_after_a_restart(tmp_path: Path) -> None:
    with agent_with(tmp_path, DISK__BUDGET="300Ki") as agent:
        with agent.peer() as peer:
            peer.publish(identity("a"), tensor_file(200))
        agent.kill()
        agent.start()
        with agent.peer() as peer:
            assert refusal(peer, "b", 200 * KIB).details["limit"] == "NodeBudget"


def test_what_a_killed_agent_was_writing_is_gone_before_the_next_one_serves(
    tmp_path: Path,
) -> None:
    environment = QUICK | {"WEIGHTLEASE_INTERVALS__ARTIFACT_SWEEP": "3600"}
    with AgentProcess(tmp_path, environment=environment) as agent, agent.peer() as peer:
        peer.begin(identity("a"), 500 * KIB)
        assert names(agent, "tmp")
        agent.kill()
        assert names(agent, "tmp")
        agent.start()
        assert names(agent, "tmp") == []


def test_a_limit_on_one_artifact_has_a_code_of_its_own(tmp_path: Path) -> None:
    with agent_with(tmp_path, DISK__MAX_ARTIFACT="50Ki") as agent, agent.peer() as peer:
        assert refusal(peer, "a", 51 * KIB).code == "artifact_too_large"
        peer.publish(identity("a"), tensor_file(10))


def test_a_namespaces_quota_leaves_other_namespaces_alone(tmp_path: Path) -> None:
    quotas = '{"default": "100Ki"}'
    with agent_with(tmp_path, DISK__NAMESPACE_QUOTAS=quotas) as agent, agent.peer() as peer:
        assert refusal(peer, "a", 150 * KIB).details["limit"] == "NamespaceQuota"
        params = wire.BeginParams(identity().to_dict(), 150 * KIB, 0.0, "disk", "other")
        assert peer.call("begin_publication", params, wire.BeginResult).status == "build"


def test_a_floor_of_free_space_is_kept(tmp_path: Path) -> None:
    with agent_with(tmp_path, DISK__MIN_FREE="1Pi") as agent, agent.peer() as peer:
        failure = refusal(peer, "a", 1)
        assert (failure.code, failure.details["limit"]) == ("insufficient_capacity", "FreeSpace")


def test_room_is_made_by_the_least_recently_leased_when_that_is_allowed(tmp_path: Path) -> None:
    with agent_with(tmp_path, DISK__BUDGET="400Ki", EVICT="true") as agent, agent.peer() as peer:
        keys = [peer.publish(identity(name), tensor_file(120)).key for name in "abc"]
        # The first is leased last, so the second is the one that nobody has missed for longest.
        used = agent.domain() / "agent" / f"{keys[0]}.used"
        peer.release(*peer.acquire(keys[0]))
        wait_until(used.exists)
        later = time.time() + 5
        os.utime(used, (later, later))
        held, fds = peer.acquire(keys[2])
        peer.publish(identity("d"), tensor_file(120))
        assert sorted(names(agent, "artifacts")) == sorted([keys[0], keys[2], identity("d").key])
        evicted = "weightlease_agent_artifacts_evicted_total"
        assert agent.metric(evicted, storage_class="disk") == 1
        assert refusal(peer, "e", 400 * KIB).details["limit"] == "NodeBudget"
        assert len(names(agent, "artifacts")) == 3, "nothing goes in vain"
        peer.release(held, fds)


def test_nothing_is_evicted_unless_an_administrator_allows_it(tmp_path: Path) -> None:
    with agent_with(tmp_path, DISK__BUDGET="150Ki") as agent, agent.peer() as peer:
        key = peer.publish(identity("a"), tensor_file(100)).key
        assert "would go with agent.capacity.evict" in refusal(peer, "b", 100 * KIB).message
        assert names(agent, "artifacts") == [key]


def test_a_budget_that_was_lowered_is_kept_by_the_sweeper(tmp_path: Path) -> None:
    with agent_with(tmp_path) as agent, agent.peer() as peer:
        keys = [peer.publish(identity(name), tensor_file(100)).key for name in "ab"]
        lease, fds = peer.acquire(keys[0])
    with agent_with(tmp_path, DISK__BUDGET="150Ki", EVICT="true") as agent:
        wait_until(lambda: names(agent, "artifacts") == [keys[0]])
    for fd in fds:
        os.close(fd)
    assert lease.key == keys[0]


def with_small_memory(folder: Path) -> AgentProcess:
    """An agent whose memory class is a tmpfs of 4 MiB."""
    memory = folder / "memory"
    memory.mkdir()
    script = f'mount -t tmpfs -o size=4m tmpfs "{memory}" && exec "$@"'
    return AgentProcess(
        folder,
        arguments=["--memory-root", str(memory)],
        environment=QUICK,
        prefix=["unshare", "--mount", "sh", "-ec", script, "sh"],
    )


def inside(agent: AgentProcess, command: str) -> None:
    status = os.system(f"nsenter --target {agent.pid} --mount sh -c '{command}'")  # noqa: S605
    assert status == 0


def publish_in_memory(peer: RawPeer, model: str, data: bytes) -> str:
    peer.begin(identity(model), len(data), storage_class="memory")
    peer.stream("model.safetensors", data)
    return peer.finalize(identity(model)).key


def test_a_tmpfs_that_fills_under_a_publication_loses_nothing(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    with with_small_memory(tmp_path) as agent, agent.peer() as peer:
        kept = tensor_file(500)
        key = publish_in_memory(peer, "a", kept)
        peer.begin(identity("b"), 3000 * KIB, storage_class="memory")
        inside(agent, f"dd if=/dev/zero of={memory}/filler bs=1k count=2500 status=none")
        with pytest.raises(RefusedError) as full:
            peer.stream("model.safetensors", tensor_file(2900))
        assert (full.value.failure.code, full.value.failure.retryable) == ("enospc", True)
        peer.call("abort", wire.Empty(), wire.Empty)
        lease, fds = peer.acquire(key)
        assert os.pread(fds[2], len(kept), 0) == kept
        peer.release(lease, fds)
        inside(agent, f"test -z $(ls {memory}/default/tmp)")
        with pytest.raises(RefusedError) as refused:
            peer.begin(identity("b"), 3000 * KIB, storage_class="memory")
        assert refused.value.failure.details["limit"] == "FreeSpace"
        inside(agent, f"rm {memory}/filler")
        publish_in_memory(peer, "b", tensor_file(2900))


def test_memory_that_the_node_does_not_have_is_not_promised(tmp_path: Path) -> None:
    memory = Path("/dev/shm") / f"weightlease-capacity-{os.getpid()}"
    agent = AgentProcess(
        tmp_path,
        arguments=["--memory-root", str(memory)],
        environment=QUICK | {"WEIGHTLEASE_CAPACITY__MEMORY__MIN_AVAILABLE": "1Pi"},
    )
    try:
        with agent, agent.peer() as peer, pytest.raises(RefusedError) as refused:
            peer.begin(identity("a"), 1, storage_class="memory")
        failure = refused.value.failure
        assert (failure.code, failure.details["limit"]) == ("insufficient_capacity", "Memory")
    finally:
        shutil.rmtree(memory)
