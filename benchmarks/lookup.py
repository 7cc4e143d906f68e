"""A lookup in `LocalStore` against vllm-omni's own store: the same files, the same checks.

Both open the domain that ours published and validate by manifest and metadata; neither keeps
anything between two lookups. Alternating, warm, the first call of each apart. A second pair of
samples goes on to hold every tensor: theirs are made by the lookup, ours when they are asked for.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import machine
from measure.artifacts import Producer, even, producer
from measure.figures import Formula, median, quotient
from measure.peer import PEER, open_store, peer_version, runtime, their_identity
from measure.places import memory_folder
from measure.results import LOAD_AVERAGE, RESULTS, Benchmark, report
from weightlease import LocalStore
from weightlease.names import StorageClass
from weightlease.policy import DomainPolicy

SIZES = (400, 5000)


def formulas_of(size: int) -> dict[str, Formula]:
    """Our metrics for an artifact of `size` tensors."""
    ours, theirs = f"lookup_{size}_ms", f"peer_lookup_{size}_ms"
    return {
        ours: median(ours),
        f"lookup_{size}_first_ms": median(f"lookup_{size}_first_ms"),
        f"lookup_{size}_vs_peer_ratio": quotient(median(theirs), median(ours)),
        f"lookup_{size}_all_tensors_vs_peer_ratio": quotient(
            median(f"peer_lookup_{size}_all_tensors_ms"), median(f"lookup_{size}_all_tensors_ms")
        ),
    }


BENCHMARK = Benchmark(
    "lookup",
    {name: formula for size in SIZES for name, formula in formulas_of(size).items()},
    {
        PEER: {
            f"lookup_{size}_{kind}": median(f"peer_lookup_{size}_{kind}")
            for size in SIZES
            for kind in ("ms", "first_ms", "all_tensors_ms")
        }
    },
)


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few samples: a smoke test")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results file")
    parser.add_argument("--tmpfs", default="", help="a folder on a tmpfs, instead of one mounted")
    given = parser.parse_args()
    load = machine.load()
    samples: dict[str, list[float]] = {}
    with memory_folder(given.tmpfs) as folder:
        for size in SIZES:
            samples |= compare(folder.path / f"{size}", size, 2 if given.quick else 40)
    samples[LOAD_AVERAGE] = [load, machine.load()]
    conditions = {"tmpfs": folder.kind}
    report(BENCHMARK.write(given.results, samples, conditions, {PEER: peer_version()}))


def compare(root: Path, size: int, rounds: int) -> dict[str, list[float]]:
    """Lookups of both stores on one artifact of `size` tensors, in milliseconds."""
    made = producer(f"lookup-{size}", even(4, size, 4096))
    ours, theirs = lookups(root, made)
    calls = {
        f"lookup_{size}_ms": (ours, False),
        f"peer_lookup_{size}_ms": (theirs, False),
        f"lookup_{size}_all_tensors_ms": (ours, True),
        f"peer_lookup_{size}_all_tensors_ms": (theirs, True),
    }
    found: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, (look_up, with_tensors) in calls.items():
            milliseconds = timed(look_up, with_tensors=with_tensors)
            if number:
                found[name].append(milliseconds)
            elif not with_tensors:
                found[name.removesuffix("_ms") + "_first_ms"] = [milliseconds]
    return found


def lookups(root: Path, made: Producer) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """One lookup in each store; each returns a lease or raises."""
    store = LocalStore(root, DomainPolicy(storage_class=StorageClass.MEMORY))
    published = store.get_or_build(made)
    if published.lease is None:
        raise RuntimeError(f"nothing was published: {published}")
    published.lease.close()
    peer = open_store(root, "memory")
    identity, level = their_identity(made.identity), runtime().ValidationLevel.MANIFEST_AND_METADATA

    def ours() -> Any:
        return hit(store.lookup(made.identity))

    def theirs() -> Any:
        return hit(peer.lookup(identity, validation=level))

    return ours, theirs


def hit(result: Any) -> Any:
    """The lease of a result, or an error."""
    if result.lease is None:
        raise RuntimeError(f"the lookup found nothing: {result}")
    return result.lease


def timed(look_up: Callable[[], Any], *, with_tensors: bool) -> float:
    """Milliseconds until the lease is there, and every tensor of it; closing is not timed."""
    started = time.perf_counter()
    lease = look_up()
    held = every_tensor(lease) if with_tensors else {}
    milliseconds = (time.perf_counter() - started) * 1000
    held.clear()
    lease.close()
    return milliseconds


def every_tensor(lease: Any) -> dict[str, Any]:
    """Each tensor of a lease of either store; theirs are a mapping, ours a method."""
    return dict(lease.tensors() if callable(lease.tensors) else lease.tensors)


if __name__ == "__main__":
    main()
