"""What one peer does wrong costs that peer alone."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agent_process import AgentProcess, wait_until
from raw_peer import RawPeer
from small_artifact import identity
from weightlease import wire

ACQUIRES = 200


@contextmanager
def busy_peer(agent: AgentProcess, payload: bytes) -> Iterator[None]:
    """Another client that leases and releases all the while; fails if it can't."""
    done: list[int] = []

    def work() -> None:
        with agent.peer() as peer:
            for _ in range(ACQUIRES):
                lease, fds = peer.acquire(identity().key)
                peer.release(lease, fds)
            done.append(ACQUIRES)

    with agent.peer() as peer:
        peer.publish(identity(), payload)
    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        worker.join(50)
    assert done == [ACQUIRES]


def connect(agent: AgentProcess) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connected.settimeout(20)
    connected.connect(str(agent.socket))
    return connected


def is_closed(connected: socket.socket) -> bool:
    try:
        return connected.recv(1) == b""
    except ConnectionResetError:
        return True


def hello() -> bytes:
    return wire.encode_request(1, "hello", wire.HelloParams(wire.SUPPORTED_VERSIONS))


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\0\0",
        struct.pack(">I", 100) + b"{",
        hello()[:-1],
    ],
    ids=["silence", "half a length", "half a frame", "all but a byte"],
)
def test_an_unfinished_hello_is_dropped_in_time(
    agent: AgentProcess, payload: bytes, said: bytes
) -> None:
    with busy_peer(agent, payload), connect(agent) as connected:
        connected.sendall(said)
        assert is_closed(connected)


@pytest.mark.parametrize(
    "said",
    [
        struct.pack(">I", 0),
        struct.pack(">I", 2**31),
        struct.pack(">I", wire.MAX_FRAME_BYTES + 1),
        struct.pack(">I", 4) + b"\xff\xfe\x00\x01",
        struct.pack(">I", 2) + b"{}",
        b"GET / HTTP/1.1\r\nHost: agent\r\n\r\n",
        struct.pack(">I", 200000) + b"[" * 200000,
    ],
    ids=["empty", "huge", "just too long", "no text", "no request", "http", "deep"],
)
def test_bytes_that_are_no_request_drop_the_peer(agent: AgentProcess, said: bytes) -> None:
    with connect(agent) as connected:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connected.sendall(said)
        assert is_closed(connected)
    assert agent.metric("weightlease_agent_peers_dropped_total", reason="protocol") == 1


def test_a_frame_that_drips_is_dropped_after_hello_too(agent: AgentProcess) -> None:
    with agent.peer() as peer:
        peer.socket.sendall(struct.pack(">I", 50) + b"{")
        assert peer.is_dropped()


def test_a_peer_that_sends_descriptors_is_dropped_and_they_are_closed(
    agent: AgentProcess,
) -> None:
    before = len(os.listdir(f"/proc/{agent.pid}/fd"))
    for _ in range(10):
        with connect(agent) as connected, open("/dev/null") as file:
            rights = array.array("i", [file.fileno()] * 50)
            connected.sendmsg([hello()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            assert is_closed(connected)
    wait_until(lambda: len(os.listdir(f"/proc/{agent.pid}/fd")) <= before)


def test_a_peer_that_never_reads_is_dropped_and_its_leases_end(
    agent: AgentProcess, payload: bytes
) -> None:
    with busy_peer(agent, payload), agent.peer() as deaf:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(100):
                deaf.send("acquire", wire.AcquireParams(key=identity().key))
        dropped = "weightlease_agent_peers_dropped_total"
        wait_until(lambda: agent.metric(dropped, reason="send_timeout") == 1)
    with agent.peer() as peer:
        wait_until(lambda: peer.inspect()[0].leases == ())


def test_a_thousand_connections_are_bounded_and_starve_nobody(
    agent: AgentProcess, payload: bytes
) -> None:
    with contextlib.ExitStack() as opened, busy_peer(agent, payload):
        for _ in range(1000):
            with contextlib.suppress(ConnectionError):
                opened.enter_context(connect(agent))
        # Those that had to go are gone soon; those that stay are no more than the strangers' share.
        wait_until(lambda: agent.metric("weightlease_agent_connections") <= 128 + 2)
        assert agent.metric("weightlease_agent_peers_dropped_total", reason="capacity") >= 800


def test_one_peer_gets_no_more_than_its_share_of_connections(agent: AgentProcess) -> None:
    with contextlib.ExitStack() as opened:
        for _ in range(64):
            opened.enter_context(agent.peer())
        with connect(agent) as connected:
            connected.sendall(hello())
            length = wire.frame_length(connected.recv(4))
            reply = wire.decode_reply(connected.recv(length))
            assert reply.error is not None
            assert (reply.error.code, reply.error.retryable) == ("too_many_requests", True)


def test_the_first_request_must_be_hello(agent: AgentProcess) -> None:
    with RawPeer(agent.socket, hello=False) as peer:
        peer.send("inspect", wire.InspectParams())
        reply = peer.receive()
        assert reply.error is not None
        assert reply.error.code == "protocol_error"
        assert peer.is_dropped()


def test_versions_without_a_common_one_are_named(agent: AgentProcess) -> None:
    with RawPeer(agent.socket, hello=False) as peer:
        peer.send("hello", wire.HelloParams((7, 8)))
        reply = peer.receive()
        assert reply.error is not None
        assert reply.error.code == "unsupported"
        assert "[7, 8]" in reply.error.message


def test_unknown_keys_leave_no_lock_files_behind(agent: AgentProcess, payload: bytes) -> None:
    with agent.peer() as peer:
        peer.publish(identity(), payload)
        for number in range(300):
            peer.send("acquire", wire.AcquireParams(key=f"{number:064x}"))
            assert peer.receive().error is not None
        # A lock file a key would let a peer fill the disk's inodes.
        assert len(os.listdir(agent.domain() / "locks")) < 10
