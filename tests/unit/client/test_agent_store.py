"""`AgentStore` against an agent that keeps to the protocol, restarts, refuses or lies."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from descriptors import open_descriptors
from scripted_agent import Peer, ScriptedAgent
from small_artifact import SmallArtifact, identity, make_artifact
from weightlease import wire
from weightlease.client import AgentStore, ClientSettings
from weightlease.errors import Failure, FailureCode, Stage, WeightLeaseError
from weightlease.policy import Validation
from weightlease.reports import CleanupStatus, InventoryState, StoreStatus

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def store(path: Path, timeout: float = 10.0) -> AgentStore:
    return AgentStore(settings=ClientSettings(socket_path=str(path), timeout=timeout))


def failure(code: FailureCode) -> Failure:
    return Failure(Stage.LOOKUP, code, retryable=False, message="as scripted")


def test_a_lease_arrives_with_its_descriptors_and_provenance(
    socket_path: Path, artifact: SmallArtifact, descriptors: list[str]
) -> None:
    def play(peer: Peer) -> None:
        peer.hello()
        peer.grant(artifact)

    with store(socket_path) as agent:
        with (
            ScriptedAgent(socket_path, play),
            agent.acquire("team-a/model:part@tp1") as lease,
        ):
            assert lease.tensor("a").tolist() == [1, 2]
            assert lease.provenance.resolution_source == "agent"
            assert lease.provenance.lease_id == "0" * 32
            assert sorted(lease.files()) == ["a.safetensors", "b.safetensors", "config.json"]
            assert lease.manifest == artifact.manifest
            assert artifact.is_leased()
        # Only now the script has certainly closed its own copies.
        assert not artifact.is_leased()
    assert open_descriptors() == descriptors


def test_received_descriptors_do_not_survive_an_exec(
    socket_path: Path, artifact: SmallArtifact
) -> None:
    def play(peer: Peer) -> None:
        peer.hello()
        peer.grant(artifact)

    command = [sys.executable, "-c", "import os; print(os.listdir('/proc/self/fd'))"]
    with ScriptedAgent(socket_path, play), store(socket_path) as agent:
        with agent.acquire("model") as lease:
            inherited = [os.get_inheritable(fd) for fd in lease._fds]
            subprocess.run(command, check=True, capture_output=True, close_fds=False)
        assert inherited == [False] * 3


def test_many_descriptors_come_in_several_frames(socket_path: Path, tmp_path: Path) -> None:
    files = {f"{i:03}.safetensors": {f"t{i}": ("U8", (1,), bytes([i]))} for i in range(150)}
    made = make_artifact(tmp_path / "many", files)

    def play(peer: Peer) -> None:
        peer.hello()
        peer.grant(made, per_frame=64)

    with (
        ScriptedAgent(socket_path, play),
        store(socket_path) as agent,
        agent.acquire("many") as lease,
    ):
        assert [lease.tensor(f"t{i}").item() for i in range(150)] == list(range(150))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key": "f" * 64}, "its manifest of"),
        ({"manifest_size": 5}, "bytes where the manifest says"),
        ({"manifest_size": 0}, "outside"),
        ({"manifest_size": 10**12}, "outside"),
        ({"validation": "wishful"}, "unknown here"),
    ],
)
def test_a_grant_that_does_not_fit_its_descriptors_leaves_nothing_open(
    socket_path: Path,
    artifact: SmallArtifact,
    changes: dict[str, Any],
    message: str,
    descriptors: list[str],
) -> None:
    def play(peer: Peer) -> None:
        peer.hello()
        peer.grant(artifact, **changes)

    with (
        ScriptedAgent(socket_path, play),
        store(socket_path) as agent,
        pytest.raises(WeightLeaseError, match=message),
    ):
        agent.acquire("model")
    assert open_descriptors() == descriptors
    assert not artifact.is_leased()


def test_a_lease_of_another_key_than_asked_is_refused(
    socket_path: Path, artifact: SmallArtifact, descriptors: list[str]
) -> None:
    def play(peer: Peer) -> None:
        peer.hello()
        peer.grant(artifact)

    with (
        ScriptedAgent(socket_path, play),
        store(socket_path) as agent,
        pytest.raises(WeightLeaseError, match="asked for eeee"),
    ):
        agent.acquire("e" * 64)
    assert open_descriptors() == descriptors


def test_without_assets_only_payloads_are_leased(
    socket_path: Path, tmp_path: Path, descriptors: list[str]
) -> None:
    bare = make_artifact(tmp_path / "bare", {"a.safetensors": {"a": ("U8", (1,), b"x")}})

    def play(peer: Peer) -> None:
        peer.hello()
        peer.grant(bare)

    with (
        ScriptedAgent(socket_path, play),
        store(socket_path) as agent,
        agent.acquire("bare", assets=False) as lease,
    ):
        assert list(lease.files()) == ["a.safetensors"]
    assert open_descriptors() == descriptors


def test_a_reference_that_breaks_the_grammar_never_reaches_the_agent(socket_path: Path) -> None:
    with pytest.raises(WeightLeaseError, match="is not a reference") as error:
        store(socket_path).acquire("Team A/model")
    assert error.value.failure.code is FailureCode.INVALID_CONFIG


def test_a_lookup_is_by_key_and_checks_the_whole_identity(
    socket_path: Path, artifact: SmallArtifact
) -> None:
    other = msgspec.structs.replace(artifact.manifest, identity=identity("test/other-fine-tune"))
    swapped = SmallArtifact(artifact.folder, other)

    def play(peer: Peer) -> None:
        peer.hello()
        peer.grant(artifact)
        peer.grant(swapped)

    with ScriptedAgent(socket_path, play), store(socket_path) as agent:
        hit = agent.lookup(identity())
        assert hit.status is StoreStatus.HIT
        assert hit.lease is not None
        hit.lease.close()
        wrong = agent.lookup(identity())
    assert wrong.status is StoreStatus.INVALID
    assert wrong.lease is None
    assert not artifact.is_leased()


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (FailureCode.LOCAL_MISS, StoreStatus.MISS),
        (FailureCode.ACTIVE_BUILD_TIMEOUT, StoreStatus.TIMEOUT),
        (FailureCode.ARTIFACT_DENIED, StoreStatus.INVALID),
        (FailureCode.CHECKSUM_MISMATCH, StoreStatus.INVALID),
        (FailureCode.PERMISSION_DENIED, StoreStatus.FAILED),
        (FailureCode.DOMAIN_UNAVAILABLE, StoreStatus.FAILED),
    ],
)
def test_a_refused_lookup_is_a_typed_outcome(
    socket_path: Path, code: FailureCode, status: StoreStatus
) -> None:
    def play(peer: Peer) -> None:
        peer.hello()
        request_id, params = peer.request("acquire")
        assert params == wire.AcquireParams(key=identity().key, validation="full_checksum")
        peer.send(wire.encode_error(request_id, failure(code)))

    with ScriptedAgent(socket_path, play), store(socket_path) as agent:
        result = agent.lookup(identity(), validation=Validation.FULL_CHECKSUM)
    assert result.status is status
    assert result.failure == (None if status is StoreStatus.MISS else failure(code))


def test_an_absent_agent_is_a_failed_lookup_that_may_be_tried_again(socket_path: Path) -> None:
    result = store(socket_path).lookup(identity())
    assert result.status is StoreStatus.FAILED
    assert result.failure is not None
    assert result.failure.code is FailureCode.DOMAIN_UNAVAILABLE
    assert result.failure.retryable


def test_a_lease_outlives_its_agent_and_the_next_acquire_finds_the_new_one(
    socket_path: Path, artifact: SmallArtifact
) -> None:
    def play(peer: Peer) -> None:
        peer.hello()
        peer.grant(artifact)

    with store(socket_path) as agent:
        with ScriptedAgent(socket_path, play):
            lease = agent.acquire("model")
        assert lease.tensor("a").tolist() == [1, 2]
        with pytest.raises(WeightLeaseError, match="no socket"):
            agent.acquire("model")
        with ScriptedAgent(socket_path, play):
            agent.acquire("model").close()
        assert artifact.is_leased()
        lease.close()
    assert not artifact.is_leased()


def test_connections_are_reused_and_given_out_to_one_thread_at_a_time(
    socket_path: Path, artifact: SmallArtifact
) -> None:
    def play(peer: Peer) -> None:
        peer.hello()
        for _ in range(10):
            peer.grant(artifact)

    with ScriptedAgent(socket_path, play), store(socket_path) as agent:
        wrong: list[BaseException] = []
        turn = threading.Lock()

        def lease() -> None:
            try:
                # One scripted connection: the turns keep the pool at one.
                for _ in range(2):
                    with turn, agent.acquire("model") as got:
                        assert got.tensor("a").tolist() == [1, 2]
            except BaseException as error:  # noqa: BLE001 - shown by the test's thread
                wrong.append(error)

        threads = [threading.Thread(target=lease) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_a_forked_child_opens_its_own_connection(
    socket_path: Path, artifact: SmallArtifact
) -> None:
    def play(peer: Peer) -> None:
        peer.hello()
        peer.grant(artifact)

    def parent(peer: Peer) -> None:
        play(peer)
        # The parent's connection is still whole after its child has used the store.
        accepted.wait()
        peer.grant(artifact)

    accepted = threading.Event()
    with store(socket_path) as agent, ScriptedAgent(socket_path, parent, play):
        agent.acquire("model").close()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with agent.acquire("model") as lease:
                    code = 0 if lease.tensor("a").tolist() == [1, 2] else 1
            finally:
                os._exit(code)
        accepted.set()
        agent.acquire("model").close()
        agent.close()
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_release_closes_and_tells_the_agent(socket_path: Path, artifact: SmallArtifact) -> None:
    told: list[msgspec.Struct] = []

    def play(peer: Peer) -> None:
        peer.hello()
        peer.grant(artifact)
        told.append(peer.answer("release", wire.Empty()))

    with ScriptedAgent(socket_path, play), store(socket_path) as agent:
        agent.release(agent.acquire("model"))
    assert told == [wire.ReleaseParams("0" * 32)]
    assert not artifact.is_leased()


def test_inspect_lists_what_the_agent_shows(socket_path: Path) -> None:
    entry = wire.InspectedArtifact("a" * 64, "ready", "a" * 64, 7, "team-a", "disk")

    def play(peer: Peer) -> None:
        peer.hello()
        peer.answer("inspect", wire.InspectResult((entry,)))
        peer.wait_for_close()

    with ScriptedAgent(socket_path, play), store(socket_path) as agent:
        found = agent.inspect()
    assert [one.state for one in found.inventory] == [InventoryState.READY]
    assert (found.store_bytes, found.domain_id) == (7, "node-1")


def test_cleanup_names_the_holders_or_the_failure(socket_path: Path) -> None:
    def play(peer: Peer) -> None:
        peer.hello()
        peer.answer("cleanup", wire.CleanupReply("active_lease", 0, ("team-a/pod",)))
        request_id, _ = peer.request("cleanup")
        peer.send(wire.encode_error(request_id, failure(FailureCode.PERMISSION_DENIED)))

    with ScriptedAgent(socket_path, play), store(socket_path) as agent:
        busy, refused = agent.cleanup("a" * 64), agent.cleanup("a" * 64)
    assert (busy.status, busy.holders) == (CleanupStatus.ACTIVE_LEASE, ("team-a/pod",))
    assert refused.status is CleanupStatus.FAILED
    assert refused.failure == failure(FailureCode.PERMISSION_DENIED)
