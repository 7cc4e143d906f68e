"""How fast artifacts are published, against what the machine can do and against vllm-omni.

In each round, alternating, in a tmpfs and on a disk: a plain write of the same bytes with fsync,
sha256 of as many bytes as a core can, then a publication of the same artifact by `LocalStore`,
through the agent, and by vllm-omni's store, each in a fresh process. The bound of a round is

    min(write with fsync, cores x sha256 / 2, files x sha256)

because every byte is hashed twice: in its file, and in its tensor.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from measure import machine
from measure.agent import Agent
from measure.artifacts import MIB, Producer, Shape, file_name, producer
from measure.figures import Formula, largest, paired
from measure.peer import PEER, peer_version
from measure.places import claim_memory, folder_below, memory_folder
from measure.results import LOAD_AVERAGE, RESULTS, Benchmark, report
from weightlease.filesystem import write_all

MEASURE = Path(__file__).resolve().parent
WRITE_BYTES = 4 * MIB
# A few large tensors and many small ones, as a transformer has them.
FULL = Shape(4, (64 * MIB,) * 4 + (8 * MIB,) * 12 + (MIB,) * 32)
QUICK = Shape(2, (2 * MIB,) * 2 + (65536,) * 8)
PLACES = {"tmpfs": "memory", "disk": "disk"}
# The metrics of the tmpfs have the plain names.
PREFIX = {"tmpfs": "publish", "disk": "publish_disk"}


def bound_gbps(of_round: dict[str, float], place: str) -> float:
    """What the machine could do in one round."""
    gigabytes = of_round["artifact_bytes"] / 1e9
    write = gigabytes / of_round[f"write_{place}_s"]
    sha256 = of_round["sha256_gbps"]
    return min(write, of_round["cores"] * sha256 / 2, of_round["files"] * sha256)


def formulas_of(place: str) -> dict[str, Formula]:
    """Our metrics for one place; every ratio is the median of the rounds' ratios."""
    prefix, ours, agent = PREFIX[place], f"publish_{place}_s", f"publish_agent_{place}_s"
    write, peer = f"write_{place}_s", f"peer_publish_{place}_s"
    bounds = (write, "sha256_gbps", "artifact_bytes", "cores", "files")

    def speed(name: str) -> Formula:
        return paired(lambda of: of["artifact_bytes"] / 1e9 / of[name], name, "artifact_bytes")

    def share_of_bound(name: str) -> Formula:
        return paired(
            lambda of: of["artifact_bytes"] / 1e9 / of[name] / bound_gbps(of, place), name, *bounds
        )

    return {
        f"{prefix}_gbps": speed(ours),
        f"{prefix}_agent_gbps": speed(agent),
        f"{prefix}_bound_gbps": paired(lambda of: bound_gbps(of, place), *bounds),
        f"{prefix}_bound_ratio": share_of_bound(ours),
        f"{prefix}_agent_bound_ratio": share_of_bound(agent),
        f"{prefix}_vs_peer_ratio": paired(lambda of: of[peer] / of[ours], peer, ours),
        f"{prefix}_vs_write_ratio": paired(lambda of: of[write] / of[ours], write, ours),
    }


BENCHMARK = Benchmark(
    "publish",
    {name: formula for place in PLACES for name, formula in formulas_of(place).items()}
    | {
        "producer_peak_rss_mib": largest("producer_rss_mib"),
        "agent_peak_rss_mib": largest("agent_rss_mib"),
        "rss_limit_mib": lambda samples: 2 * samples["largest_tensor_bytes"][0] / MIB + 256,
    },
    {
        PEER: {
            f"{PREFIX[place]}_gbps": paired(
                lambda of, place=place: of["artifact_bytes"] / 1e9 / of[f"peer_publish_{place}_s"],  # type: ignore[misc]
                f"peer_publish_{place}_s",
                "artifact_bytes",
            )
            for place in PLACES
        }
    },
)


@dataclass(frozen=True)
class Place:
    """Where one kind of storage is measured: a folder of its own and an agent that owns it."""

    name: str
    folder: Path
    agent: Agent

    @property
    def storage_class(self) -> str:
        """Its storage class."""
        return PLACES[self.name]


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small round: a smoke test")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results file")
    parser.add_argument(
        "--rounds", type=int, default=7, help="rounds of a full run, after one to warm up"
    )
    parser.add_argument("--tmpfs", default="", help="a folder on a tmpfs, instead of one mounted")
    parser.add_argument("--disk", default="/var/tmp", help="a folder on a disk")  # noqa: S108
    given = parser.parse_args()
    shape, rounds = (QUICK, 1) if given.quick else (FULL, given.rounds)
    load = machine.load()
    samples: dict[str, list[float]] = {"largest_tensor_bytes": [float(shape.largest)]}
    with ExitStack() as ends:
        folders = {
            "tmpfs": ends.enter_context(memory_folder(given.tmpfs)),
            "disk": ends.enter_context(folder_below(given.disk)),
        }
        places = [
            Place(name, folder.path, ends.enter_context(Agent(folder.path, PLACES[name])))
            for name, folder in folders.items()
        ]
        measure_round(places, shape, rounds)
        for number in range(rounds):
            for sample, value in measure_round(places, shape, number):
                samples.setdefault(sample, []).append(value)
        samples["agent_rss_mib"] = [place.agent.peak_rss_mib for place in places]
    samples[LOAD_AVERAGE] = [load, machine.load()]
    conditions = {name: folder.kind for name, folder in folders.items()}
    report(BENCHMARK.write(given.results, samples, conditions, {PEER: peer_version()}))


def measure_round(places: list[Place], shape: Shape, number: int) -> list[tuple[str, float]]:
    """Every sample of one round."""
    made = producer(f"round-{number}", shape)
    found = [
        ("artifact_bytes", float(shape.total_bytes)),
        ("cores", float(machine.hardware().cores)),
        ("files", float(shape.files)),
        ("sha256_gbps", sha256_gbps(made.block)),
    ]
    for place in places:
        if place.name == "tmpfs":
            claim_memory(place.folder, shape.total_bytes)
        found.append((f"write_{place.name}_s", write_seconds(place.folder, made)))
        for how, sample in (
            ("local", f"publish_{place.name}_s"),
            ("agent", f"publish_agent_{place.name}_s"),
            ("peer", f"peer_publish_{place.name}_s"),
        ):
            seconds, peak = publish(place, how, f"round-{number}", shape)
            found.append((sample, seconds))
            if how != "peer":
                found.append(("producer_rss_mib", peak))
    return found


def publish(place: Place, how: str, name: str, shape: Shape) -> tuple[float, float]:
    """Seconds of one publication in a fresh process, and that process's peak memory in MiB."""
    where = place.agent.socket if how == "agent" else str(place.folder / how)
    sizes = ",".join(map(str, shape.tensor_bytes))
    what = (place.storage_class, name, f"{shape.files}:{sizes}")
    done = subprocess.run(
        [sys.executable, "-m", "measure.publisher", how, where, str(place.folder), *what],
        cwd=MEASURE,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    said = json.loads(done.stdout.splitlines()[-1])
    return said["seconds"], said["peak_rss_mib"]


def sha256_gbps(block: bytes) -> float:
    """How fast one core hashes, in 10^9 bytes a second."""
    started = time.perf_counter()
    hashlib.sha256(block).digest()
    return len(block) / 1e9 / (time.perf_counter() - started)


def write_seconds(folder: Path, made: Producer) -> float:
    """Seconds to write every tensor of every file, each file then synced; nothing is hashed."""
    started = time.perf_counter()
    for number in range(made.shape.files):
        with open(folder / file_name(number), "wb", buffering=0) as file:
            for _, data in made.tensors(number):
                for start in range(0, len(data), WRITE_BYTES):
                    write_all(file.fileno(), data[start : start + WRITE_BYTES])
            os.fsync(file.fileno())
    seconds = time.perf_counter() - started
    for number in range(made.shape.files):
        os.unlink(folder / file_name(number))
    return seconds


if __name__ == "__main__":
    main()
