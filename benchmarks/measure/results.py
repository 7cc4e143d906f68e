"""Results files: written by the scripts alone, each metric computable from the samples beside it.

    benchmarks/results/<benchmark>-<hardware>.json
      {"benchmark", "date", "command", "commit",
       "hardware": {cpu, cores, memoryGiB, gpu, driver}, "versions": {name: version},
       "metrics": {name: number}, "samples": {name: [raw numbers]},
       "peers": {peer: {"version", "metrics": {name: number}}}}

Names carry their unit. `load_average` holds the load of the last minute at start and end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import msgspec

from measure import machine
from measure.figures import Formula, compute
from measure.machine import ROOT, Hardware

LOAD_AVERAGE = "load_average"
RESULTS = ROOT / "benchmarks" / "results"


class Peer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Figures of somebody else's code, taken in the same run."""

    version: str
    metrics: dict[str, float]


class Results(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One results file."""

    benchmark: str
    date: str
    command: str
    commit: str
    hardware: Hardware
    versions: dict[str, str]
    metrics: dict[str, float]
    samples: dict[str, list[float]]
    peers: dict[str, Peer]


@dataclass(frozen=True)
class Benchmark:
    """What a script measures: formulas of its metrics, and of those of its peers."""

    name: str
    formulas: Mapping[str, Formula]
    peers: Mapping[str, Mapping[str, Formula]]

    def metrics(self, results: Results) -> dict[str, float]:
        """The metrics that the samples of `results` give."""
        return compute(self.formulas, results.samples)

    def peer_metrics(self, results: Results) -> dict[str, dict[str, float]]:
        """The same for the peers."""
        return {peer: compute(formulas, results.samples) for peer, formulas in self.peers.items()}

    def write(
        self,
        folder: Path,
        samples: dict[str, list[float]],
        conditions: dict[str, str],
        peer_versions: Mapping[str, str] = MappingProxyType({}),
    ) -> Path:
        """Write the results file; returns its path. `conditions` are stated with the versions."""
        hardware = machine.hardware()
        # Rounded before anything is computed: what the file holds gives what the file says.
        samples = {name: [round(each, 6) for each in found] for name, found in samples.items()}
        results = Results(
            benchmark=self.name,
            date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            command=machine.command(),
            commit=machine.commit(),
            hardware=hardware,
            versions=machine.versions() | conditions,
            metrics=compute(self.formulas, samples),
            samples=samples,
            peers={
                peer: Peer(peer_versions[peer], compute(formulas, samples))
                for peer, formulas in self.peers.items()
            },
        )
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}-{hardware.slug}.json"
        path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))
        return path


def read(path: Path) -> Results:
    """A results file, strictly.

    Raises:
        msgspec.ValidationError: it has another form.

    """
    return msgspec.json.decode(path.read_bytes(), type=Results, strict=True)


def report(path: Path) -> None:
    """Print the metrics of a results file."""
    results = read(path)
    start, end = results.samples[LOAD_AVERAGE]
    print(f"{path.name}: commit {results.commit[:12]}, load {start:.1f} to {end:.1f}")
    for name, value in results.metrics.items():
        print(f"  {name:40} {value:12.4f}")
    for peer, found in results.peers.items():
        for name, value in found.metrics.items():
            print(f"  {peer} {found.version} {name:24} {value:12.4f}")
