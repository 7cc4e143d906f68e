"""Attaching a resident model on a GPU, beside the ways that load it anew.

Wan 2.1 1.3B's transformer at full size with random weights, held by another process. Timed is
`attach` on a fresh connection: transport, complete check and binding of every tensor; building the
module on `meta` and `detach` are apart. Files for the loaders lie in a tmpfs and in the page cache.
Blocks of attaches alternate with one load by each other way, all in this one process.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from measure import machine
from measure.figures import Formula, Samples, median, percentile, quotient
from measure.gpu_donor import used_bytes
from measure.gpu_models import build, key_of
from measure.results import LOAD_AVERAGE, RESULTS, Benchmark, report
from weightlease.gpu import WeightCacheClient
from weightlease.gpu.fingerprint import Fingerprinter

WAN_TENSORS = 827
LOADERS = ("safetensors", "fastsafetensors", "instanttensor")
BLOBS = (8, 40)
GIB = 1 << 30


def best_loader(samples: Samples) -> float:
    """Seconds of the quickest loader's median load."""
    return min(median(f"{name}_load_s")(samples) for name in LOADERS)


def in_seconds(name: str) -> Formula:
    """The median of samples in milliseconds, in seconds."""
    return lambda samples: median(name)(samples) / 1000


def with_construction(formula: Formula) -> Formula:
    """Seconds, with those of building the module on meta."""
    return lambda samples: formula(samples) + median("construct_ms")(samples) / 1000


ATTACH = in_seconds("attach_ms")
PRETRAINED = median("diffusers_load_s")
BENCHMARK = Benchmark(
    "gpu_attach",
    {
        "attach_ms_p50": percentile("attach_ms", 0.5),
        "attach_ms_p99": percentile("attach_ms", 0.99),
        "construct_ms_p50": percentile("construct_ms", 0.5),
        "detach_ms_p50": percentile("detach_ms", 0.5),
        "attach_vs_from_pretrained_ratio": quotient(PRETRAINED, ATTACH),
        "attach_vs_best_loader_ratio": quotient(best_loader, ATTACH),
        "attach_vs_from_pretrained_with_construction_ratio": quotient(
            PRETRAINED, with_construction(ATTACH)
        ),
        "attach_vs_best_loader_with_construction_ratio": quotient(
            with_construction(best_loader), with_construction(ATTACH)
        ),
        "attach_vs_cuda_ipc_ratio": quotient(median("cuda_ipc_attach_ms"), median("attach_ms")),
        **{f"attach_transport_{gib}gib_ms": median(f"transport_{gib}gib_ms") for gib in BLOBS},
        "donor_moving_peak_ratio": quotient(
            median("donor_most_bytes"), median("donor_loaded_bytes")
        ),
        "fingerprint_gbps": lambda samples: (
            median("fingerprint_bytes")(samples) / median("fingerprint_s")(samples) / 1e9
        ),
    },
    {
        "torch": {"cuda_ipc_attach_ms_p50": percentile("cuda_ipc_attach_ms", 0.5)},
        "diffusers": {"load_s": PRETRAINED},
        **{name: {"load_s": median(f"{name}_load_s")} for name in LOADERS},
    },
)


@contextmanager
def donor(kind: str, transport: str, folder: str = "") -> Iterator[tuple[Path, dict[str, int]]]:
    """A donor process; its socket and the device's memory as it says."""
    source = Path(__file__).parent
    path = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as private:
        socket = Path(private) / "s.sock"
        command = [sys.executable, "-m", "measure.gpu_donor", kind, str(socket), transport]
        running = subprocess.Popen(
            [*command, *([folder] if folder else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
        )
        with running:
            if running.stdin is None or running.stdout is None:
                raise RuntimeError("a pipe is missing")
            try:
                line = running.stdout.readline()
                yield socket, json.loads(line)["used_bytes"]
            finally:
                running.stdin.close()
                running.wait(120)


def timed_attach(client: WeightCacheClient, kind: str, samples: dict[str, list[float]]) -> None:
    """One attach and detach, in milliseconds."""
    started = time.perf_counter()
    attached = client.attach(lambda: build(kind))
    done = time.perf_counter()
    samples["attach_ms"].append((done - started - attached.construct_seconds) * 1000)
    samples["construct_ms"].append(attached.construct_seconds * 1000)
    count = len(attached.layout.tensors)
    started = time.perf_counter()
    attached.detach()
    samples["detach_ms"].append((time.perf_counter() - started) * 1000)
    if kind == "wan" and count != WAN_TENSORS:
        raise RuntimeError(f"{count} tensors are not Wan's {WAN_TENSORS}")


def with_safetensors(files: list[str]) -> Any:
    """Every tensor by safetensors' own loader."""
    from safetensors.torch import load_file

    return [load_file(file, device="cuda") for file in files]


def with_fastsafetensors(files: list[str]) -> Any:
    """Every tensor by fastsafetensors, without GPUDirect storage."""
    from fastsafetensors import fastsafe_open

    with fastsafe_open(filenames=files, nogds=True, device="cuda:0") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping


def with_instanttensor(files: list[str]) -> Any:
    """Every tensor by instanttensor."""
    from instanttensor import safe_open

    with safe_open(files, framework="pt", device=0) as opened:
        return dict(opened.tensors())


def with_diffusers(folder: str) -> Any:
    """The whole model as its users load it."""
    from diffusers import WanTransformer3DModel

    return WanTransformer3DModel.from_pretrained(folder, torch_dtype=torch.bfloat16).to("cuda")


def timed_load(load: Callable[[], Any]) -> float:
    """Seconds until everything is on the device."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    started = time.perf_counter()
    held = load()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    del held
    return seconds


def compare(folder: str, blocks: int, each: int) -> dict[str, list[float]]:
    """Attaches in blocks, each followed by one load by every other way."""
    samples: dict[str, list[float]] = {
        name: [] for name in ("attach_ms", "construct_ms", "detach_ms", "cuda_ipc_attach_ms")
    }
    with (
        donor("wan", "vmm", folder) as (socket, used),
        donor("wan", "cuda-ipc") as (live_socket, _),
    ):
        samples |= {f"donor_{name}_bytes": [float(value)] for name, value in used.items()}
        files = sorted(str(path) for path in Path(folder).glob("*.safetensors"))
        loads: dict[str, Callable[[], Any]] = {
            "diffusers": lambda: with_diffusers(folder),
            "safetensors": lambda: with_safetensors(files),
            "fastsafetensors": lambda: with_fastsafetensors(files),
            "instanttensor": lambda: with_instanttensor(files),
        }
        client, live = (
            WeightCacheClient(socket, key_of("wan")),
            WeightCacheClient(live_socket, key_of("wan")),
        )
        for _ in range(3):
            client.attach(lambda: build("wan")).detach()
            live.attach(lambda: build("wan")).detach()
        for load in loads.values():
            timed_load(load)
        samples["free_bytes"] = [float(used_bytes())]
        for _ in range(blocks):
            for _ in range(each):
                timed_attach(client, "wan", samples)
            gc.collect()
            apart: dict[str, list[float]] = {"attach_ms": [], "construct_ms": [], "detach_ms": []}
            timed_attach(live, "wan", apart)
            samples["cuda_ipc_attach_ms"] += apart["attach_ms"]
            for name, load in loads.items():
                samples.setdefault(f"{name}_load_s", []).append(timed_load(load))
        gc.collect()
        torch.cuda.empty_cache()
        samples["free_bytes"].append(float(used_bytes()))
    return samples


def transports(rounds: int) -> dict[str, list[float]]:
    """Attaches of one large buffer, in milliseconds."""
    found: dict[str, list[float]] = {}
    for gib in BLOBS:
        kind = str(gib)
        with donor(kind, "vmm") as (socket, _):
            client = WeightCacheClient(socket, key_of(kind))
            apart: dict[str, list[float]] = {"attach_ms": [], "construct_ms": [], "detach_ms": []}
            for _ in range(rounds + 3):
                timed_attach(client, kind, apart)
            found[f"transport_{gib}gib_ms"] = apart["attach_ms"][3:]
    return found


def fingerprints(nbytes: int, rounds: int) -> dict[str, list[float]]:
    """Fingerprints of as many random bytes as the model has, in seconds."""
    memory = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device="cuda")
    by = Fingerprinter(torch.device("cuda"))
    by.take(memory)
    seconds = [timed_load(lambda: by.take(memory)) for _ in range(rounds)]
    return {"fingerprint_s": seconds, "fingerprint_bytes": [float(nbytes)]}


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few samples: a smoke test")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results file")
    parser.add_argument("--tmpfs", default="/dev/shm", help="a folder on a tmpfs, 4 GB")  # noqa: S108 - a tmpfs is meant
    given = parser.parse_args()
    blocks, each = (2, 5) if given.quick else (10, 32)
    load = machine.load()
    with tempfile.TemporaryDirectory(dir=given.tmpfs) as folder:
        samples = compare(folder, blocks, each)
    samples |= transports(5 if given.quick else 30)
    samples |= fingerprints(int(2.84e9), 5)
    samples[LOAD_AVERAGE] = [load, machine.load()]
    versions = {name: version(name) for name in BENCHMARK.peers}
    conditions = {"cuda-bindings": version("cuda-bindings"), "tensors": str(WAN_TENSORS)}
    report(BENCHMARK.write(given.results, samples, conditions, versions))


if __name__ == "__main__":
    main()
