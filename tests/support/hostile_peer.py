"""`python hostile_peer.py UID SOCKET KEY`: all that a peer of an agent can do wrong, at once.

Prints `raging` once it has done each thing a first time, then goes on until it is killed. What it
does and what becomes of it is of no interest to it: errors are what it is after.
"""

from __future__ import annotations

import array
import contextlib
import os
import resource
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

from weightlease import wire

CONNECTIONS = 1000
DEAF, ACQUIRES = 8, 200
HALVES = 30
PAUSE_SECONDS = 0.25
HELLO = wire.encode_request(1, "hello", wire.HelloParams(wire.SUPPORTED_VERSIONS))


def connect(path: str) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connected.settimeout(2)
    connected.connect(path)
    return connected


def welcomed(path: str) -> socket.socket:
    """A connection that has said hello and read the answer, so that it is no stranger."""
    connected = connect(path)
    connected.sendall(HELLO)
    connected.recv(65536)
    return connected


def crowd(path: str) -> None:
    """A thousand connections that say nothing."""
    with contextlib.ExitStack() as held:
        for _ in range(CONNECTIONS):
            with contextlib.suppress(OSError):
                held.enter_context(connect(path))


def half_frames(path: str) -> None:
    """Frames that begin and never end, before and after hello."""
    with contextlib.ExitStack() as held:
        for open_one in (connect, welcomed):
            for said in (b"\0\0", struct.pack(">I", 100) + b"{", HELLO[:-1]):
                for _ in range(HALVES // 6):
                    with contextlib.suppress(OSError):
                        connected = held.enter_context(open_one(path))
                        connected.sendall(said)
        # Longer than the agent waits for the rest of a frame.
        time.sleep(2)


def huge_frames(path: str) -> None:
    """Lengths that nobody has memory for, and the longest frame that is allowed, full of junk."""
    for said in (
        struct.pack(">I", 2**32 - 1) + bytes(1 << 16),
        struct.pack(">I", wire.MAX_FRAME_BYTES + 1),
        struct.pack(">I", wire.MAX_FRAME_BYTES) + b"[" * wire.MAX_FRAME_BYTES,
    ):
        with contextlib.suppress(OSError), welcomed(path) as connected:
            connected.sendall(said)
            connected.recv(1)


def deaf(path: str, key: str) -> None:
    """Leases asked for and never taken: their descriptors stay in flight."""
    request = wire.encode_request(2, "acquire", wire.AcquireParams(key=key))
    with contextlib.ExitStack() as held:
        for _ in range(DEAF):
            with contextlib.suppress(OSError):
                connected = held.enter_context(welcomed(path))
                for _ in range(ACQUIRES):
                    connected.sendall(request)
        time.sleep(1)


def foreign_descriptors(path: str) -> None:
    """Descriptors that nobody asked for."""
    with contextlib.suppress(OSError), welcomed(path) as connected, open("/dev/null") as file:
        rights = array.array("i", [file.fileno()] * 60)
        connected.sendmsg([HELLO], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        connected.recv(1)


def again_and_again(deed: Callable[[], None], done: threading.Semaphore) -> None:
    deed()
    done.release()
    while True:
        # What it costs the machine to be hostile is not the agent's to answer for.
        time.sleep(PAUSE_SECONDS)
        with contextlib.suppress(OSError):
            deed()


def main() -> None:
    uid, path, key = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.setgroups([])
    os.setuid(uid)
    deeds = [
        partial(crowd, path),
        partial(half_frames, path),
        partial(huge_frames, path),
        partial(deaf, path, key),
        partial(foreign_descriptors, path),
    ]
    done = threading.Semaphore(0)
    for deed in deeds:
        threading.Thread(target=again_and_again, args=(deed, done), daemon=True).start()
    for _ in deeds:
        done.acquire()
    print("raging", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
