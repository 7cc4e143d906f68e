"""A real Prometheus scrapes the cluster, and every panel of the dashboard lives."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import yaml

import host_processes
from prometheus import PrometheusServer, panel_queries, pod_targets
from scenes import PYTHON, next_line, ready, run_program
from stage import Stage
from weightlease_demo import manifests
from weightlease_demo.cluster import NAMESPACE, REPOSITORY
from weightlease_demo.kubectl import Object, until

FILES = REPOSITORY / "charts" / "weightlease" / "files"
SLOWLY = (
    "import time\n"
    "from weightlease.client import publication\n"
    "whole = publication._StreamedFile.write\n"
    "def write(self, data):\n"
    "    whole(self, data)\n"
    "    time.sleep(0.2)\n"
    "publication._StreamedFile.write = write\n"
    "from weightlease.producer.__main__ import main\n"
    "raise SystemExit(main())\n"
)
GARBAGE = (
    "import socket\n"
    "peer = socket.socket(socket.AF_UNIX)\n"
    "peer.connect('/run/weightlease/agent.sock')\n"
    "peer.sendall(b'GET / HTTP/1.1')\n"
    "peer.settimeout(20)\n"
    "try:\n"
    "    assert peer.recv(1) == b''\n"
    "except ConnectionResetError:\n"
    "    pass\n"
)


def test_every_panel_changes_when_something_happens(
    stage: Stage, team: str, tmp_path: Path
) -> None:
    agents, operators = pods_of(stage, "agent"), pods_of(stage, "operator")
    targets = {
        "weightlease-agent": pod_targets(agents, 9470),
        "weightlease-operator": pod_targets(operators, 9471),
    }
    scraped = f"count(count_over_time(up[1h]) > 5) == {len(agents) + len(operators)}"
    with PrometheusServer(
        tmp_path / "prometheus", targets, rules=[eager_rules(tmp_path)]
    ) as server:
        # Five scrapes of each, so that a rate that has just come to be is no news.
        until("all are scraped", lambda: server.query(scraped))
        began = time.time()
        script_of_a_day(stage, team)
        host_processes.kill_hard("weightlease_node_agent", f"-{stage.nodes[1]}/")
        until("an alert fires", server.firing)
        server.set_targets("weightlease-agent", pod_targets(agents[:1], 9470))
        queries = panel_queries(json.loads((FILES / "dashboard.json").read_text()))
        still = unchanged(server, queries, since=began)
        for _ in range(20):
            if not still:
                break
            time.sleep(1)
            still = unchanged(server, queries, since=began)
        assert still == []


def unchanged(server: PrometheusServer, queries: dict[str, str], *, since: float) -> list[str]:
    """Titles of panels that showed one and the same from `since` until now."""
    seconds = int(time.time() - since)
    return [
        title
        for title, expression in queries.items()
        if not has_changed(server.history(expression, seconds=seconds), points=seconds + 1)
    ]


def script_of_a_day(stage: Stage, team: str) -> None:
    """A slow publication, leases, a refusal, a hostile peer, a failing source, a removal."""
    kubectl, node = stage.kubectl, stage.nodes[0]
    producer = kubectl.get("weightproducer", "snapshot")
    kubectl.apply(
        {
            "apiVersion": manifests.API_VERSION,
            "kind": "WeightProducer",
            "metadata": {"name": "slowly"},
            "spec": producer["spec"] | {"command": [PYTHON, "-c", SLOWLY]},
        },
        manifests.hub_artifact(
            "minilm",
            team,
            stage.hub,
            credentials="hub-token",
            producerRef={"name": "slowly"},
        ),
        nowhere(stage, team),
    )
    ready(kubectl, "minilm", team)
    for artifact, name in (("minilm", "lease"), ("unknown", "refused")):
        run_program(
            kubectl, name, team, node=node, image=stage.producer_image,
            arguments=["hold_lease.py" if artifact == "minilm" else "ask_once.py", artifact],
        )  # fmt: skip
    next_line(kubectl, "lease", team)
    stage.cluster.on_node(node, "python3", "-c", GARBAGE)
    until(
        "the wrong source has failed",
        lambda: kubectl.get("weightartifact", "nowhere", team)["status"].get("failures"),
    )
    kubectl.delete("pod", "lease", team)
    kubectl.delete("weightartifact", "minilm", team)
    kubectl.delete("weightproducer", "slowly")


def nowhere(stage: Stage, team: str) -> Object:
    """An artifact whose repository does not exist."""
    artifact = manifests.hub_artifact("nowhere", team, stage.hub)
    artifact["spec"]["source"]["huggingFace"]["repo"] = "nobody/nothing"
    return artifact


def pods_of(stage: Stage, component: str) -> list[Object]:
    """The chart's pods of one component, sorted by node."""
    pods = stage.kubectl.list("pods", NAMESPACE, f"app.kubernetes.io/component={component}")
    return sorted(pods, key=lambda pod: pod["spec"]["nodeName"])


def eager_rules(folder: Path) -> Path:
    """The chart's alerts, without the patience that spares people at night."""
    text = re.sub(r"for: \S+", "for: 1s", (FILES / "alerts.yaml").read_text())
    path = folder / "alerts.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(text)))
    return path


def has_changed(history: dict[str, list[float]], *, points: int) -> bool:
    """Whether a series took two values, or came or went within `points` seconds."""
    return any(len(set(values)) > 1 or len(values) < points for values in history.values())
