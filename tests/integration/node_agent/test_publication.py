"""Publications over a real socket: streamed, cut off, broken off, awaited."""

from __future__ import annotations

import hashlib
import os
import threading

import msgspec
import pytest

from agent_process import AgentProcess, wait_until
from raw_peer import RawPeer, RefusedError
from small_artifact import identity, safetensors_bytes
from weightlease import wire
from weightlease.errors import FailureCode
from weightlease.identity import WeightArtifactIdentity

PAYLOAD = wire.FileKind.PAYLOAD
MIB = 1024 * 1024


def open_file(peer: RawPeer, name: str, size: int) -> None:
    declaration = wire.FileDeclaration(name, PAYLOAD, size)
    peer.call("declare", wire.DeclareParams((declaration,)), wire.Empty)
    peer.call("open_file", wire.OpenFileParams(name, PAYLOAD), wire.Empty)


def code_of(peer: RawPeer, method: str, params: msgspec.Struct) -> FailureCode:
    with pytest.raises(RefusedError) as refused:
        peer.call(method, params, wire.Empty)
    return refused.value.failure.code


def staged(agent: AgentProcess) -> list[str]:
    return os.listdir(agent.domain() / "tmp")


def test_the_agent_hashes_what_it_writes(agent: AgentProcess, payload: bytes) -> None:
    with agent.peer() as peer:
        peer.begin(identity(), len(payload))
        closed = peer.stream("model.safetensors", payload)
        assert closed.size == len(payload)
        assert closed.sha256 == hashlib.sha256(payload).hexdigest()
        published = peer.finalize(identity())
        assert published.key == identity().key
        assert published.payload_bytes == len(payload)


def test_a_present_artifact_is_not_built_again(agent: AgentProcess, payload: bytes) -> None:
    with agent.peer() as peer:
        published = peer.publish(identity(), payload)
        again = peer.begin(identity(), len(payload))
        assert again.status is wire.PublicationStatus.PRESENT
        assert again.manifest_sha256 == published.manifest_sha256
        lease, fds = peer.acquire(again.key)
        peer.release(lease, fds)


def test_a_second_producer_waits_and_finds_the_first_ones_artifact(
    agent: AgentProcess, payload: bytes
) -> None:
    results: list[wire.BeginResult] = []

    def wait() -> None:
        with agent.peer() as other:
            results.append(other.begin(identity(), len(payload)))

    with agent.peer() as peer:
        peer.begin(identity(), len(payload))
        waiter = threading.Thread(target=wait)
        waiter.start()
        peer.stream("model.safetensors", payload)
        assert results == []
        peer.finalize(identity())
        waiter.join(20)
    assert [result.status for result in results] == [wire.PublicationStatus.PRESENT]


def test_a_second_producer_takes_over_when_the_first_one_dies(
    agent: AgentProcess, payload: bytes
) -> None:
    first = agent.peer()
    first.begin(identity(), len(payload))
    open_file(first, "model.safetensors", len(payload))
    first.send("write", wire.WriteParams(100), payload[:100])
    wait_until(lambda: staged(agent))
    done = threading.Event()

    def take_over() -> None:
        with agent.peer() as other:
            other.publish(identity(), payload)
            done.set()

    waiter = threading.Thread(target=take_over)
    waiter.start()
    first.close()
    waiter.join(30)
    assert done.is_set()


def test_waiting_for_another_builder_ends_in_time(agent: AgentProcess, payload: bytes) -> None:
    with agent.peer() as first, agent.peer() as second:
        first.begin(identity(), len(payload))
        with pytest.raises(RefusedError) as refused:
            second.begin(identity(), len(payload), wait=0.3)
        assert refused.value.failure.code is FailureCode.ACTIVE_BUILD_TIMEOUT
        assert refused.value.failure.retryable


def test_a_producer_killed_half_way_leaves_nothing(agent: AgentProcess, payload: bytes) -> None:
    with agent.peer() as peer:
        peer.begin(identity(), len(payload))
        open_file(peer, "model.safetensors", len(payload))
        peer.send("write", wire.WriteParams(300), payload[:300])
        wait_until(lambda: staged(agent))
    with agent.peer() as peer:
        wait_until(lambda: not staged(agent))
        assert peer.inspect() == ()
        peer.publish(identity(), payload)


def test_a_killed_agents_staging_is_swept_by_its_successor(
    agent: AgentProcess, payload: bytes
) -> None:
    with agent.peer() as peer:
        peer.begin(identity(), len(payload))
        wait_until(lambda: staged(agent))
        agent.kill()
    agent.start()
    wait_until(lambda: not staged(agent))
    with agent.peer() as peer:
        peer.publish(identity(), payload)


def test_more_bytes_than_declared_end_the_publication(agent: AgentProcess, payload: bytes) -> None:
    with agent.peer() as peer:
        peer.begin(identity(), len(payload))
        open_file(peer, "model.safetensors", 10)
        write = peer.send("write", wire.WriteParams(20), b"x" * 20)
        reply = peer.receive()
        assert reply.id == write
        assert reply.error is not None
        assert reply.error.code is FailureCode.PRODUCER_FAILED
        # Bytes that were under way are swallowed, questions get the failure again.
        peer.send("write", wire.WriteParams(20), b"y" * 20)
        assert code_of(peer, "close_file", wire.Empty()) is FailureCode.PRODUCER_FAILED
        peer.call("abort", wire.Empty(), wire.Empty)
        assert staged(agent) == []
        peer.publish(identity(), payload)


def test_a_producer_that_does_not_stop_is_dropped(agent: AgentProcess, payload: bytes) -> None:
    with agent.peer() as peer:
        peer.begin(identity(), 100)
        open_file(peer, "model.safetensors", 50)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            send_for_ever(peer)
    with agent.peer() as peer:
        peer.publish(identity(), payload)


def send_for_ever(peer: RawPeer) -> None:
    chunk = b"x" * (4 * MIB)
    while True:
        peer.send("write", wire.WriteParams(len(chunk)), chunk)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../escape.safetensors", PAYLOAD),
        ("a/b.safetensors", PAYLOAD),
        ("model.bin", PAYLOAD),
        ("../../etc/cron.d/x", wire.FileKind.ASSET),
        ("/etc/passwd", wire.FileKind.ASSET),
    ],
)
def test_a_hostile_file_name_is_refused(
    agent: AgentProcess, name: str, kind: wire.FileKind
) -> None:
    with agent.peer() as peer:
        peer.begin(identity(), 100)
        declaration = wire.FileDeclaration(name, kind, 1)
        peer.call("declare", wire.DeclareParams((declaration,)), wire.Empty)
        refused = code_of(peer, "open_file", wire.OpenFileParams(name, kind))
        assert refused in {FailureCode.MANIFEST_CORRUPT, FailureCode.PRODUCER_FAILED}
        peer.call("abort", wire.Empty(), wire.Empty)


def test_a_lying_header_is_refused_while_it_streams(agent: AgentProcess) -> None:
    lie = (2**40).to_bytes(8, "little") + b"{}" * 50
    with agent.peer() as peer:
        peer.begin(identity(), len(lie))
        open_file(peer, "model.safetensors", len(lie))
        peer.send("write", wire.WriteParams(len(lie)), lie)
        reply = peer.receive()
        assert reply.error is not None
        assert reply.error.code is FailureCode.MANIFEST_CORRUPT


def test_files_that_were_declared_and_not_sent_are_missed(agent: AgentProcess) -> None:
    with agent.peer() as peer:
        peer.begin(identity(), 100)
        declaration = wire.FileDeclaration("a.safetensors", PAYLOAD, 10)
        peer.call("declare", wire.DeclareParams((declaration,)), wire.Empty)
        with pytest.raises(RefusedError) as refused:
            peer.finalize(identity())
        assert "a.safetensors" in refused.value.failure.message
        assert peer.inspect() == ()


def test_other_bytes_than_expected_are_a_content_mismatch(
    agent: AgentProcess, payload: bytes
) -> None:
    with agent.peer() as peer:
        peer.begin(identity(), len(payload))
        peer.stream("model.safetensors", payload)
        with pytest.raises(RefusedError) as refused:
            peer.finalize(identity(), expected="f" * 64)
        assert refused.value.failure.code is FailureCode.CONTENT_MISMATCH
        assert peer.inspect() == ()


def test_a_request_out_of_order_is_answered_and_a_stray_write_drops_the_peer(
    agent: AgentProcess,
) -> None:
    with agent.peer() as peer:
        assert code_of(peer, "finalize", wire.FinalizeParams("p", "r", {})) is (
            FailureCode.PROTOCOL_ERROR
        )
        peer.begin(identity(), 100)
        assert code_of(peer, "acquire", wire.AcquireParams(key="a" * 64)) is (
            FailureCode.PROTOCOL_ERROR
        )
        peer.send("write", wire.WriteParams(5), b"12345")
        assert peer.is_dropped()


def test_a_class_that_the_node_lacks_is_refused(agent: AgentProcess) -> None:
    with agent.peer() as peer, pytest.raises(RefusedError) as refused:
        peer.begin(identity(), 100, storage_class="memory")
    assert refused.value.failure.code is FailureCode.STORAGE_CLASS_MISMATCH


def test_large_files_stream_in_bounded_memory(agent: AgentProcess) -> None:
    data = safetensors_bytes({f"t{n}": ("U8", (32 * MIB,), bytes(32 * MIB)) for n in range(16)})
    with agent.peer(timeout=120) as peer:
        before = peak_mib(agent.pid)
        peer.publish(large(), data)
        assert peak_mib(agent.pid) - before <= 256
        lease, fds = peer.acquire(large().key)
        assert os.fstat(fds[2]).st_size == len(data)
        peer.release(lease, fds)


def peak_mib(pid: int) -> float:
    """Peak resident memory; reset by nobody, so a difference is an upper bound."""
    with open(f"/proc/{pid}/status") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def large() -> WeightArtifactIdentity:
    return identity("test/large")
