"""The benchmarks run for real, small; a results file says nothing that its samples do not give."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from measure.results import LOAD_AVERAGE, RESULTS, Benchmark, Results, read

ROOT = Path(__file__).parents[3]
# the names that the design fixed, by script
METRICS = {
    "lease": {
        "lease_acquire_ms_p50",
        "lease_acquire_ms_p99",
        "lease_vs_echo_ratio",
        "pss_ratio_8_consumers",
    },
    "lookup": {
        "lookup_400_ms",
        "lookup_5000_ms",
        "lookup_400_vs_peer_ratio",
        "lookup_5000_vs_peer_ratio",
    },
    "operator_scale": {"operator_rss_mib", "operator_converge_s", "operator_writes_per_s"},
    "publish": {
        "publish_gbps",
        "publish_bound_ratio",
        "publish_agent_bound_ratio",
        "publish_vs_peer_ratio",
        "producer_peak_rss_mib",
        "agent_peak_rss_mib",
    },
}

# those that need an accelerator: what they wrote is checked, they run by themselves alone
ACCELERATED = {
    "gpu_attach": {
        "attach_ms_p50",
        "attach_ms_p99",
        "attach_transport_8gib_ms",
        "attach_vs_from_pretrained_ratio",
        "attach_vs_best_loader_ratio",
    },
}


def benchmark(script: str) -> Benchmark:
    found = importlib.import_module(script).BENCHMARK
    assert isinstance(found, Benchmark)
    return found


def require_sound(results: Results) -> None:
    """Every metric is there, is a positive number and follows from the samples."""
    known = benchmark(results.benchmark)
    assert (METRICS | ACCELERATED)[results.benchmark] <= set(results.metrics)
    assert results.metrics == pytest.approx(known.metrics(results))
    stated = {name: peer.metrics for name, peer in results.peers.items()}
    assert stated == {name: pytest.approx(of) for name, of in known.peer_metrics(results).items()}
    assert all(value > 0 for value in results.metrics.values())
    assert len(results.samples[LOAD_AVERAGE]) == 2
    assert results.hardware.cores > 0
    assert {"python", "kernel", "weightlease"} <= set(results.versions)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("script", sorted(METRICS))
def test_a_script_measures_and_writes_what_its_samples_give(script: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", f"benchmarks/{script}.py"]
    subprocess.run([*command, "--quick", "--results", str(tmp_path)], cwd=ROOT, check=True)
    (written,) = tmp_path.iterdir()
    results = read(written)
    assert written.name == f"{script}-{results.hardware.slug}.json"
    assert results.command.startswith(f"benchmarks/{script}.py --quick")
    require_sound(results)


def test_a_changed_metric_is_noticed() -> None:
    results = read(next(RESULTS.glob("lease-*.json")))
    results.metrics["lease_acquire_ms_p50"] /= 2
    with pytest.raises(AssertionError):
        require_sound(results)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_committed_result_follows_from_its_samples(path: Path) -> None:
    results = read(path)
    require_sound(results)
    assert not results.commit.endswith("-dirty")
    assert "--quick" not in results.command
