"""One operator process and a fleet: from new WeightArtifacts until every node holds each of them.

etcd, API server and operator are real; agents, pods and the Job controller are simulated in this
process (measure.simulated_cluster), on the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from measure import machine
from measure.agent import peak_rss_mib
from measure.figures import Formula, largest, median, quotient
from measure.machine import ROOT
from measure.results import LOAD_AVERAGE, RESULTS, Benchmark, report
from measure.simulated_cluster import ROOT as API
from measure.simulated_cluster import Api, SimulatedCluster

# the tests' way to a real API server
sys.path += [str(ROOT / "tests" / "support"), str(ROOT / "hack" / "devcluster" / "src")]
import apiserver

NAMESPACE = "team"
MAX_CONCURRENT_NODES = 100
_WINDOW_SECONDS = 10
_LIMIT_SECONDS = 3600


def total(name: str) -> Formula:
    """The last of the samples of a counter."""
    return lambda samples: samples[name][-1]


BENCHMARK = Benchmark(
    "operator_scale",
    {
        "operator_rss_mib": largest("operator_peak_rss_mib"),
        "operator_converge_s": median("converge_s"),
        "operator_writes_per_s": quotient(total("writes"), total("converge_s")),
        "operator_writes_per_s_busiest": largest("writes_per_s"),
        "operator_writes_per_shard": quotient(total("writes"), total("shards")),
    },
    {},
)


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="20 nodes, 3 artifacts")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results file")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--artifacts", type=int, default=20)
    given = parser.parse_args()
    nodes, artifacts = (20, 3) if given.quick else (given.nodes, given.artifacts)
    load = machine.load()
    with (
        tempfile.TemporaryDirectory() as folder,
        apiserver.running(Path(folder)) as server,
    ):
        server.install_crds()
        samples = asyncio.run(measure(server, Path(folder), nodes, artifacts))
    samples[LOAD_AVERAGE] = [load, machine.load()]
    conditions = {"nodes": str(nodes), "artifacts": str(artifacts)}
    report(BENCHMARK.write(given.results, samples, conditions))


async def measure(
    server: apiserver.ApiServer, folder: Path, nodes: int, artifacts: int
) -> dict[str, list[float]]:
    """Every artifact of every node, timed from the creation of the artifacts."""
    context = ssl.create_default_context(cafile=str(folder / "certificates" / "apiserver.crt"))
    base = f"https://127.0.0.1:{server.connection.port}"
    headers = {"Authorization": f"Bearer {server.token}"}
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    async with aiohttp.ClientSession(base, headers=headers, connector=connector) as session:
        api = Api(session)
        cluster = SimulatedCluster(api, (f"node-{number:04}" for number in range(nodes)))
        await prepare(api, cluster)
        with operator(server.kubeconfig, folder / "operator.log") as process:
            simulation = asyncio.create_task(cluster.run())
            await until(lambda: weight_nodes(api, nodes), simulation)
            samples = await converge(api, process, simulation, folder, artifacts)
            simulation.cancel()
    made = sorted(cluster.finished.values())
    if made != [1] * (nodes * artifacts):
        raise RuntimeError(f"{sum(made)} Jobs for {len(made)} of {nodes * artifacts} shards")
    return samples | {"shards": [float(len(made))]}


async def prepare(api: Api, cluster: SimulatedCluster) -> None:
    """Nodes, a namespace with an account, and the producer that artifacts name."""
    await cluster.add_nodes()
    await api.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    account = {"metadata": {"name": "default"}}
    await api.call("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", account)
    abi = dict.fromkeys(
        ("id", "version", "implementationFingerprint", "manifestSchema", "restorerSchema"), "1"
    )
    spec: dict[str, Any] = {"image": "example/producer:1", "producer": abi}
    spec |= {"sources": ["huggingFace"], "representations": ["canonical"]}
    body = {
        "apiVersion": "weightlease.io/v1alpha1",
        "kind": "WeightProducer",
        "metadata": {"name": "snapshot"},
        "spec": spec,
    }
    await api.call("POST", f"{API}/weightproducers", body)


async def converge(
    api: Api, process: subprocess.Popen[bytes], simulation: asyncio.Task[None], folder: Path,
    artifacts: int,
) -> dict[str, list[float]]:  # fmt: skip
    """Create the artifacts and sample the operator until all are Ready."""
    port = serving_port(folder / "operator.log")
    before, started = await writes(port), time.monotonic()
    for number in range(artifacts):
        await api.call("POST", f"{API}/namespaces/{NAMESPACE}/weightartifacts", artifact(number))
    counts, rates, moment = [0.0], [], started
    while not await all_ready(api, artifacts):
        if simulation.done():
            await simulation
        if time.monotonic() - started > _LIMIT_SECONDS or process.poll() is not None:
            raise RuntimeError((folder / "operator.log").read_text()[-4000:])
        await asyncio.sleep(0.5)
        elapsed = time.monotonic() - moment
        if elapsed >= _WINDOW_SECONDS:
            counts.append(await writes(port) - before)
            rates.append((counts[-1] - counts[-2]) / elapsed)
            moment += elapsed
    seconds = time.monotonic() - started
    counts.append(await writes(port) - before)
    rates.append((counts[-1] - counts[-2]) / (time.monotonic() - moment))
    return {
        "converge_s": [seconds],
        "writes": counts,
        "writes_per_s": rates,
        "operator_peak_rss_mib": [peak_rss_mib(process.pid)],
    }


def artifact(number: int) -> dict[str, Any]:
    source = {"huggingFace": {"repo": "org/model", "revision": f"{number:040x}"}}
    rollout = {"maxConcurrentNodes": MAX_CONCURRENT_NODES}
    return {
        "apiVersion": "weightlease.io/v1alpha1",
        "kind": "WeightArtifact",
        "metadata": {"name": f"model-{number:02}"},
        "spec": {"source": source, "rollout": rollout},
    }


async def weight_nodes(api: Api, nodes: int) -> bool:
    found = await api.call("GET", f"{API}/weightnodes?limit={nodes}")
    return all("status" in each for each in found["items"]) and len(found["items"]) == nodes


async def all_ready(api: Api, artifacts: int) -> bool:
    found = await api.call("GET", f"{API}/namespaces/{NAMESPACE}/weightartifacts")
    states = [
        condition["status"]
        for each in found["items"]
        for condition in each.get("status", {}).get("conditions", [])
        if condition["type"] == "Ready"
    ]
    return states.count("True") == artifacts


async def until(condition: Any, simulation: asyncio.Task[None]) -> None:
    """Poll; raises what ended the simulation."""
    async with asyncio.timeout(_LIMIT_SECONDS):
        while not await condition():
            if simulation.done():
                await simulation
            await asyncio.sleep(0.5)


def serving_port(log: Path) -> int:
    """Where the operator serves metrics, from its log."""
    for line in log.read_text().splitlines():
        if line.startswith("{") and (said := json.loads(line)).get("event") == "serving":
            return int(said["port"])
    raise RuntimeError("the operator does not serve")


async def writes(port: int) -> float:
    """The operator's own writes so far."""
    address = f"http://127.0.0.1:{port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(address) as answer:
        page = await answer.text()
    found = re.findall(r"^weightlease_operator_writes_total\{.*\} (\S+)$", page, re.MULTILINE)
    return sum(map(float, found))


@contextmanager
def operator(kubeconfig: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The operator with its defaults, in a process of its own."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "KUBECONFIG": str(kubeconfig),
        "WEIGHTLEASE_OPERATOR_METRICS_PORT": "0",
        "WEIGHTLEASE_OPERATOR_BIND_ADDRESS": "127.0.0.1",
    }
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "weightlease_operator"], env=environment, stderr=file
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
