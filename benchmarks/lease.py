"""How long a lease takes, against the least it could, and how much memory eight holders share.

One artifact of 1,000 tensors in a tmpfs, one real agent. A sample is the time from `acquire` on a
warm connection to the first element of a tensor read. In alternating blocks, an empty round trip to
a process that sends one descriptor, with decoding that artifact's manifest; and leases that follow
a pause, so on whatever caches others left. Then eight processes lease the artifact and read every
page of it.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from measure import machine
from measure.agent import Agent
from measure.artifacts import MIB, Shape, even, producer
from measure.figures import median, percentile, quotient
from measure.places import memory_folder
from measure.results import LOAD_AVERAGE, RESULTS, Benchmark, report
from weightlease import AgentStore
from weightlease.manifest import parse_manifest

CONSUMERS = 8
# As many samples of one kind in a row, so that neither kind runs on the caches of the other.
BLOCK = 25
PAUSE_SECONDS = 0.005
MEASURE = Path(__file__).resolve().parent / "measure"
BENCHMARK = Benchmark(
    "lease",
    {
        "lease_acquire_ms_p50": percentile("lease_acquire_ms", 0.5),
        "lease_acquire_ms_p99": percentile("lease_acquire_ms", 0.99),
        "lease_acquire_after_pause_ms_p50": percentile("lease_acquire_after_pause_ms", 0.5),
        "lease_vs_echo_ratio": quotient(median("lease_acquire_ms"), median("echo_and_decode_ms")),
        "lease_vs_bare_echo_ratio": quotient(median("lease_acquire_ms"), median("echo_ms")),
        "pss_ratio_8_consumers": lambda samples: (
            sum(samples["consumer_pss_bytes"]) / samples["artifact_bytes"][0]
        ),
        "rss_ratio_smallest": lambda samples: (
            min(samples["consumer_rss_bytes"]) / samples["artifact_bytes"][0]
        ),
    },
    {},
)


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few samples, small: a smoke test")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results file")
    parser.add_argument("--tmpfs", default="", help="a folder on a tmpfs, instead of one mounted")
    given = parser.parse_args()
    blocks, warm_up = (1, 5) if given.quick else (80, 200)
    shape = even(2, 1000, 4096 if given.quick else MIB // 4, assets=6)
    load = machine.load()
    with (
        memory_folder(given.tmpfs) as folder,
        Agent(folder.path, "memory") as agent,
        AgentStore(agent.socket, "") as store,
    ):
        key = publish(store, shape)
        samples = time_leases(store, key, folder.path, warm_up, blocks)
        samples |= share_pages(store, agent.socket, key)
    samples[LOAD_AVERAGE] = [load, machine.load()]
    report(BENCHMARK.write(given.results, samples, {"tmpfs": folder.kind}))


def publish(store: AgentStore, shape: Shape) -> str:
    """Publish the artifact; its key."""
    made = producer("lease", shape)
    with store.begin(made.identity, made.total_bytes, storage_class="memory") as publication:
        publication.finalize(made.produce(publication))
    return made.identity.key


# ---- time ----


def time_leases(
    store: AgentStore, key: str, folder: Path, warm_up: int, blocks: int
) -> dict[str, list[float]]:
    """Leases and the least they could cost, in alternating blocks; in milliseconds."""
    with store.acquire(key) as lease:
        manifest, name = lease.manifest.canonical_bytes, lease.names()[500]
    with echo_server(folder, manifest) as echo:
        calls: dict[str, Callable[[], float]] = {
            "lease_acquire_ms": lambda: time_one_lease(store, key, name),
            "echo_and_decode_ms": lambda: time_one_echo(echo, manifest),
            "echo_ms": lambda: time_one_echo(echo),
            "lease_acquire_after_pause_ms": lambda: time_one_lease(store, key, name, PAUSE_SECONDS),
        }
        for call in calls.values():
            for _ in range(warm_up):
                call()
        found: dict[str, list[float]] = {sample: [] for sample in calls}
        for _ in range(blocks):
            for sample, call in calls.items():
                found[sample] += [call() * 1000 for _ in range(BLOCK)]
    return found


def time_one_lease(store: AgentStore, key: str, name: str, pause: float = 0.0) -> float:
    """Seconds from the request to the first element of a tensor; the release is not timed."""
    time.sleep(pause)
    started = time.perf_counter()
    lease = store.acquire(key)
    tensor = lease.tensor(name)
    tensor[0, 0].item()
    seconds = time.perf_counter() - started
    del tensor
    store.release(lease)
    return seconds


def time_one_echo(echo: socket.socket, manifest: bytes = b"") -> float:
    """Seconds for one byte there and one byte with a descriptor back, and to decode a manifest."""
    started = time.perf_counter()
    echo.sendall(b".")
    _, fds, _, _ = socket.recv_fds(echo, 1, 1)
    if manifest:
        parse_manifest(manifest)
    seconds = time.perf_counter() - started
    os.close(fds[0])
    return seconds


@contextmanager
def echo_server(folder: Path, manifest: bytes) -> Iterator[socket.socket]:
    """A connection to a process that sends descriptors of a file with the manifest."""
    path, file = str(folder / "echo.sock"), folder / "manifest"
    file.write_bytes(manifest)
    command = [sys.executable, str(MEASURE / "echo.py"), path, str(file)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
    ):
        expect(server, "ready")
        connection.connect(path)
        try:
            yield connection
        finally:
            connection.close()


# ---- memory ----


def share_pages(store: AgentStore, path: str, key: str) -> dict[str, list[float]]:
    """PSS and RSS of the artifact's inodes in each of eight processes that read all of it."""
    with store.acquire(key) as lease:
        files = [os.stat(file) for name, file in lease.files().items() if name.startswith("model")]
        size = lease.shared_bytes
    inodes = {info.st_ino for info in files}
    command = [sys.executable, str(MEASURE / "consumer.py"), path, key]
    with ExitStack() as ends:
        consumers = [ends.enter_context(running(command)) for _ in range(CONSUMERS)]
        for consumer in consumers:
            expect(consumer, "holding")
        found = [memory_of(consumer.pid, inodes) for consumer in consumers]
    return {
        "artifact_bytes": [float(size)],
        "consumer_pss_bytes": [pss for pss, _ in found],
        "consumer_rss_bytes": [rss for _, rss in found],
    }


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that ends when its input does."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


def expect(process: subprocess.Popen[str], word: str) -> None:
    """Wait until a process says `word`."""
    line = process.stdout.readline() if process.stdout else ""
    if not line.startswith(word):
        raise RuntimeError(f"expected {word!r} of process {process.pid}, got {line!r}")


def memory_of(pid: int, inodes: set[int]) -> tuple[float, float]:
    """PSS and RSS, in bytes, of a process's mappings of some inodes."""
    totals = {"Pss": 0.0, "Rss": 0.0}
    ours = False
    with open(f"/proc/{pid}/smaps", encoding="utf-8", errors="replace") as file:
        for line in file:
            if mapping := re.match(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ (\d+)", line):
                ours = int(mapping[1]) in inodes
            elif ours and (value := re.match(r"(Pss|Rss):\s+(\d+) kB", line)):
                totals[value[1]] += int(value[2]) * 1024
    return totals["Pss"], totals["Rss"]


if __name__ == "__main__":
    main()
