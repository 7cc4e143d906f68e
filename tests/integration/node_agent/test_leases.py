"""Leases over a real socket from a real agent."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys

import pytest

from agent_process import AgentProcess, wait_until
from mortal import MORTAL
from raw_peer import RawPeer, RefusedError
from small_artifact import identity, safetensors_bytes
from weightlease import wire
from weightlease.errors import FailureCode
from weightlease.manifest import parse_manifest

HOLDER = """
import os, sys, time
sys.path[:0] = {paths!r}
from mortal import MORTAL
from raw_peer import RawPeer
peer = RawPeer({socket!r})
lease, fds = peer.acquire({key!r})
print(lease.lease_id, flush=True)
sys.stdin.read(1)
print(len(os.pread(fds[2], 1 << 20, 0)), flush=True)
time.sleep(3600)
"""


def start_holder(agent: AgentProcess, key: str) -> subprocess.Popen[str]:
    """A process that leases `key`, says its lease id, and reads when told to."""
    program = HOLDER.format(paths=sys.path, socket=str(agent.socket), key=key)
    holder = subprocess.Popen(
        [*MORTAL, sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert len(holder.stdout.readline().strip()) == 32
    return holder


def end(holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait(10)
    for stream in (holder.stdin, holder.stdout):
        if stream is not None:
            stream.close()


def test_a_lease_brings_manifest_lock_payload_and_assets(
    agent: AgentProcess, payload: bytes
) -> None:
    with agent.peer() as peer:
        published = peer.publish(identity(), payload, {"conf/config.json": b"{}"})
        lease, fds = peer.acquire(published.key)
        assert lease.manifest_sha256 == published.manifest_sha256
        manifest = parse_manifest(os.pread(fds[0], lease.manifest_size, 0))
        assert [asset.path for asset in manifest.assets] == ["conf/config.json"]
        assert os.pread(fds[2], len(payload) + 1, 0) == payload
        assert os.pread(fds[3], 3, 0) == b"{}"
        peer.release(lease, fds)


def test_every_descriptor_is_read_only_and_each_lease_has_its_own(
    agent: AgentProcess, payload: bytes
) -> None:
    with agent.peer() as peer:
        key = peer.publish(identity(), payload).key
        (first, ours), (second, theirs) = peer.acquire(key), peer.acquire(key)
        for fd in ours:
            assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        os.lseek(ours[2], 100, os.SEEK_SET)
        assert os.lseek(theirs[2], 0, os.SEEK_CUR) == 0
        assert first.lease_id != second.lease_id
        peer.release(first, ours)
        peer.release(second, theirs)


def test_a_leased_artifact_is_not_removed_and_its_holder_is_named(
    agent: AgentProcess, payload: bytes
) -> None:
    with agent.peer() as peer:
        key = peer.publish(identity(), payload).key
        lease, fds = peer.acquire(key)
        reply = peer.cleanup(key)
        assert (reply.status, reply.holders) == ("active_lease", (f"uid 0 pid {os.getpid()}",))
        peer.release(lease, fds)
        assert peer.cleanup(key).status == "removed"
        assert peer.cleanup(key).status == "absent"


def test_a_lease_outlives_the_connection_that_got_it(agent: AgentProcess, payload: bytes) -> None:
    with agent.peer() as peer:
        key = peer.publish(identity(), payload).key
        _, fds = peer.acquire(key)
    with agent.peer() as other:
        assert other.cleanup(key).status == "active_lease"
        for fd in fds:
            os.close(fd)
        assert other.cleanup(key).status == "removed"


def test_a_lease_ends_with_its_holders_process_without_a_word(
    agent: AgentProcess, payload: bytes
) -> None:
    with agent.peer() as peer:
        key = peer.publish(identity(), payload).key
        holder = start_holder(agent, key)
        assert peer.inspect(key)[0].leases == (f"uid 0 pid {holder.pid}",)
        end(holder)
        wait_until(lambda: peer.inspect(key)[0].leases == ())
        assert not list((agent.domain() / "leases").iterdir())


def test_a_killed_agent_takes_no_lease_along(agent: AgentProcess, payload: bytes) -> None:
    with agent.peer() as peer:
        key = peer.publish(identity(), payload).key
    holder = start_holder(agent, key)
    agent.kill()
    agent.start()
    try:
        with agent.peer() as peer:
            assert peer.inspect(key)[0].leases == (f"uid 0 pid {holder.pid}",)
            refused = peer.cleanup(key)
            assert refused.status == "active_lease"
            assert refused.holders == (f"uid 0 pid {holder.pid}",)
            assert holder.stdin is not None
            assert holder.stdout is not None
            holder.stdin.write("x")
            holder.stdin.flush()
            assert int(holder.stdout.readline()) == len(payload)
            end(holder)
            wait_until(lambda: peer.cleanup(key).status == "removed")
    finally:
        if holder.poll() is None:
            end(holder)


def test_a_restarted_agent_pins_leased_artifacts_for_other_programs_too(
    agent: AgentProcess, payload: bytes
) -> None:
    with agent.peer() as peer:
        key = peer.publish(identity(), payload).key
    holder = start_holder(agent, key)
    agent.kill()
    agent.start()
    lock = os.open(agent.domain() / "locks" / f"{key}.artifact.lock", os.O_RDWR)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(lock)
        end(holder)


def test_an_unknown_key_is_a_miss(agent: AgentProcess) -> None:
    with agent.peer() as peer, pytest.raises(RefusedError) as refused:
        peer.acquire("a" * 64)
    assert refused.value.failure.code is FailureCode.LOCAL_MISS


@pytest.mark.parametrize(
    ("params", "code"),
    [
        (wire.AcquireParams(), FailureCode.INVALID_CONFIG),
        (wire.AcquireParams(reference="a", key="b" * 64), FailureCode.INVALID_CONFIG),
        (wire.AcquireParams(key="../../etc/passwd"), FailureCode.INVALID_CONFIG),
        (wire.AcquireParams(key="a" * 64, validation="trust_me"), FailureCode.INVALID_CONFIG),
        (wire.AcquireParams(reference="minilm"), FailureCode.UNSUPPORTED),
    ],
)
def test_a_bad_acquire_is_an_error_reply_and_the_connection_goes_on(
    agent: AgentProcess, params: wire.AcquireParams, code: FailureCode
) -> None:
    with agent.peer() as peer:
        with pytest.raises(RefusedError) as refused:
            peer.call("acquire", params, wire.AcquireResult)
        assert refused.value.failure.code is code
        assert peer.inspect() == ()


def test_a_flipped_byte_is_found_by_a_full_checksum_and_never_leased_again(
    agent: AgentProcess, payload: bytes
) -> None:
    with agent.peer() as peer:
        key = peer.publish(identity(), payload).key
        lease, fds = peer.acquire(key)
        path = agent.domain() / "artifacts" / key / "model.safetensors"
        with open(path, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\xff")
        full = wire.AcquireParams(key=key, validation="full_checksum")
        with pytest.raises(RefusedError) as refused:
            peer.call("acquire", full, wire.AcquireResult)
        assert refused.value.failure.code is FailureCode.CHECKSUM_MISMATCH
        with pytest.raises(RefusedError) as refused:
            peer.acquire(key)
        assert refused.value.failure.code is FailureCode.ARTIFACT_DENIED
        peer.release(lease, fds)


def test_an_artifact_of_more_files_than_a_frame_carries_arrives_whole(agent: AgentProcess) -> None:
    files = {
        f"part-{n:03}.safetensors": safetensors_bytes({f"t{n}": ("U8", (1,), bytes([n]))})
        for n in range(150)
    }
    with agent.peer() as peer:
        peer.begin(identity(), sum(map(len, files.values())))
        for name, data in files.items():
            peer.stream(name, data)
        key = peer.finalize(identity()).key
        lease, fds = peer.acquire(key)
        assert lease.fd_count == len(fds) == 152
        assert [os.pread(fd, 1 << 16, 0) for fd in fds[2:]] == list(files.values())
        peer.release(lease, fds)


def test_metrics_follow_leases(agent: AgentProcess, payload: bytes) -> None:
    with agent.peer() as peer:
        key = peer.publish(identity(), payload).key
        lease, fds = peer.acquire(key)
        active = "weightlease_agent_leases_active"
        assert agent.metric(active, namespace="default") == 1
        peer.release(lease, fds)
        assert agent.metric(active, namespace="default") == 0
        assert agent.metric("weightlease_agent_leases_granted_total", namespace="default") == 1
        assert agent.metric("weightlease_agent_artifacts", state="ready") == 1


def test_probes_tell_life_from_readiness(agent: AgentProcess) -> None:
    assert agent.get("/healthz") == (200, "ok\n")
    assert agent.get("/readyz") == (200, "ok\n")
    agent.socket.unlink()
    status, text = agent.get("/readyz")
    assert status == 503
    assert "is not ours" in text


def test_a_second_agent_takes_the_socket_over_and_the_first_leaves_it_there(
    agent: AgentProcess, payload: bytes, tmp_path: object
) -> None:
    with agent.peer() as peer:
        key = peer.publish(identity(), payload).key
    successor = AgentProcess(agent.root.parent)
    with successor:
        assert successor.metric("weightlease_agent_leader") == 0
        assert agent.stop() == 0
        with RawPeer(successor.socket) as peer:
            lease, fds = peer.acquire(key)
            peer.release(lease, fds)
        wait_until(lambda: successor.metric("weightlease_agent_leader") == 1)


def test_summing_an_artifact_keeps_nobody_else_waiting(agent: AgentProcess) -> None:
    size = 64 * 1024 * 1024
    data = safetensors_bytes({f"t{n}": ("U8", (size,), bytes(size)) for n in range(4)})
    with agent.peer(timeout=120) as slow, agent.peer() as quick:
        key = slow.publish(identity(), data).key
        slow.send("acquire", wire.AcquireParams(key=key, validation="full_checksum"))
        lease, fds = quick.acquire(key)
        quick.release(lease, fds)
        reply = slow.receive()
        assert reply.error is None
        assert wire.decode_result(reply, wire.AcquireResult).validation == "full_checksum"
