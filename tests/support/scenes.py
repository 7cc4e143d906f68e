"""What several scenarios look at: nodes' inventories, Jobs, pods' output."""

from __future__ import annotations

import json
from typing import Any

from weightlease_demo import manifests
from weightlease_demo.cluster import REPOSITORY
from weightlease_demo.kubectl import Kubectl, Object, until

PROGRAMS = {"/programs": str(REPOSITORY / "tests" / "e2e" / "programs")}
PYTHON = "/opt/weightlease/bin/python"
STORE = "/var/lib/weightlease/disk"


def ready(kubectl: Kubectl, name: str, namespace: str, *, seconds: float = 120) -> Object:
    """Wait for an artifact as a user does, and return it."""
    kubectl.wait_for_condition("weightartifact", name, "Ready", namespace, seconds=seconds)
    return kubectl.get("weightartifact", name, namespace)


def shard_key(artifact: Object) -> str:
    """Key of a one-component artifact."""
    (shard,) = artifact["status"]["shards"]
    key: str = shard["key"]
    return key


def condition(artifact: Object, kind: str) -> Object:
    """One condition of an artifact, or an empty one."""
    conditions = artifact.get("status", {}).get("conditions", [])
    return next((entry for entry in conditions if entry["type"] == kind), {})


def held(kubectl: Kubectl, node: str, key: str) -> Object | None:
    """The inventory entry of a key on a node."""
    status = kubectl.get("weightnode", node).get("status", {})
    return next((entry for entry in status.get("inventory", []) if entry["key"] == key), None)


def jobs(kubectl: Kubectl, name: str, namespace: str) -> list[Object]:
    """Prewarm Jobs of an artifact."""
    return kubectl.list("jobs", namespace, f"weightlease.io/artifact={name}")


def prewarmed_on(kubectl: Kubectl, name: str, namespace: str) -> list[str]:
    """The node of each prewarm pod that ever started, sorted; Jobs themselves go when settled."""
    return sorted(
        event["source"]["host"]
        for event in kubectl.list("events", namespace)
        if event["reason"] == "Started"
        and event["involvedObject"]["kind"] == "Pod"
        and event["involvedObject"]["name"].startswith(f"{name}-")
    )


def run_program(
    kubectl: Kubectl,
    name: str,
    namespace: str,
    *,
    node: str,
    image: str,
    arguments: list[str],
    security: Object | None = None,
    folders: dict[str, str] | None = None,
) -> None:
    """Start a pod with one of our programs and wait until it runs."""
    script, *rest = arguments
    pod = manifests.consumer_pod(
        name,
        namespace,
        node=node,
        image=image,
        command=[PYTHON, f"/programs/{script}", *rest],
        security=security,
        folders={**PROGRAMS, **(folders or {})},
    )
    kubectl.create(pod)
    until(f"{name} runs", lambda: phase(kubectl, name, namespace) in {"Running", "Succeeded"})


def phase(kubectl: Kubectl, name: str, namespace: str) -> str:
    """A pod's phase."""
    found: str = kubectl.get("pod", name, namespace)["status"].get("phase", "")
    assert found != "Failed", kubectl.logs(name, namespace)
    return found


def lines(kubectl: Kubectl, name: str, namespace: str) -> list[dict[str, Any]]:
    """JSON lines that a pod has printed."""
    output = kubectl.logs(name, namespace)
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def next_line(kubectl: Kubectl, name: str, namespace: str, *, after: int = -1) -> dict[str, Any]:
    """The newest line whose `count` is beyond `after`."""

    def newest() -> dict[str, Any] | None:
        phase(kubectl, name, namespace)
        found = [line for line in lines(kubectl, name, namespace) if line["count"] > after]
        return found[-1] if found else None

    line: dict[str, Any] = until(f"{name} says more", newest)
    return line
