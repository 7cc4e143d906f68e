"""Inline volumes: pods and Jobs of a restricted namespace, files by path, restarts underneath."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from restricted_pods import (
    PROGRAMS,
    PYTHON,
    libraries,
    programs,
    restricted_namespace,
    restricted_pod,
)
from scenes import STORE, held, lines, next_line, prewarmed_on, ready, shard_key
from stage import HUB_TOKEN, Stage
from weightlease_demo import manifests
from weightlease_demo.cluster import NAMESPACE as SYSTEM
from weightlease_demo.kubectl import KubectlError, until

NAMESPACE = "restricted"
FILES = "/run/weightlease/files"
VOLUMES = "/run/weightlease-csi"
OPERATOR = "deployment/weightlease-operator"


@pytest.fixture(scope="module")
def restricted(stage: Stage) -> Iterator[str]:
    stage.kubectl.apply(
        restricted_namespace(NAMESPACE),
        manifests.hub_token_secret("hub-token", NAMESPACE, HUB_TOKEN),
        *libraries(NAMESPACE),
        programs(NAMESPACE, "load_tree.py"),
    )
    yield NAMESPACE
    stage.kubectl.delete("namespace", NAMESPACE)
    stage.kubectl.delete("pv", f"{NAMESPACE}-libraries")


def loaded_from(folder: Path) -> dict[str, Any]:
    """What the same script loads from the checkpoint itself."""
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "load_tree.py"), str(folder)],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return line


def mount_events(stage: Stage, pod: str) -> list[str]:
    return [
        event["message"]
        for event in stage.kubectl.list("events", NAMESPACE)
        if event["involvedObject"]["name"] == pod and event["reason"] == "FailedMount"
    ]


def restart(stage: Stage, component: str, node: str) -> None:
    """Replace a component's pod on one node, and wait for its successor."""
    selector = f"app.kubernetes.io/component={component}"

    def of_node() -> list[Any]:
        found = stage.kubectl.list("pods", SYSTEM, selector)
        return [pod for pod in found if pod["spec"]["nodeName"] == node]

    (old,) = of_node()
    stage.kubectl.delete("pod", old["metadata"]["name"], SYSTEM)
    until(
        f"{component} is back",
        lambda: any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for pod in of_node()
            for condition in pod["status"].get("conditions", [])
        ),
        seconds=150,
    )


def leases(stage: Stage, node: str, key: str) -> list[str]:
    entry = held(stage.kubectl, node, key) or {}
    return sorted(lease["holder"] for lease in entry.get("leases", []))


def volume_records(stage: Stage, node: str) -> str:
    return stage.cluster.on_node(node, "sh", "-c", f"cat {VOLUMES}/*/volume.json 2>/dev/null || :")


def test_a_restricted_namespace_refuses_the_hosts_socket(stage: Stage, restricted: str) -> None:
    """The standard is enforced: what follows is not admitted by accident."""
    pod = manifests.consumer_pod(
        "by-host-path", restricted, node=stage.nodes[0], image=stage.producer_image, command=["x"]
    )
    with pytest.raises(KubectlError, match="violates PodSecurity"):
        stage.kubectl.create(pod)


def waiting_then_warm(stage: Stage, namespace: str, node: str) -> str:
    """An engine that waits for its artifact and says so, then the artifact; its key."""
    kubectl = stage.kubectl
    kubectl.create(
        restricted_pod(
            "engine", namespace, node=node, image=stage.producer_image, artifact="minilm",
            command=[PYTHON, "/programs/load_tree.py", FILES, "600"],
        )
    )  # fmt: skip
    until(
        "the pod's event tells why",
        lambda: any(
            f"artifact minilm is not ready on node {node}" in message
            for message in mount_events(stage, "engine")
        ),
    )
    kubectl.apply(
        manifests.hub_artifact(
            "minilm", namespace, stage.hub, credentials="hub-token",
            placement={"nodeSelector": {"kubernetes.io/hostname": node}},
        )
    )  # fmt: skip
    key = shard_key(ready(kubectl, "minilm", namespace))
    assert prewarmed_on(kubectl, "minilm", namespace) == [node]
    kubectl("wait", "pod/engine", "-n", namespace, "--for=condition=Ready", "--timeout=120s",
            seconds=140)  # fmt: skip
    return key


def test_a_restricted_namespace_prewarms_and_an_engine_opens_the_files_by_path(
    stage: Stage, restricted: str, checkpoint: Path
) -> None:
    kubectl, node = stage.kubectl, stage.nodes[0]
    key = waiting_then_warm(stage, restricted, node)

    # The same script computes the same from the tree as from the checkpoint.
    next_line(kubectl, "engine", restricted)
    loaded, *_ = lines(kubectl, "engine", restricted)
    assert loaded == loaded_from(checkpoint)

    # Another pod leases through its own socket, without any token.
    kubectl.create(
        restricted_pod(
            "holder", restricted, node=node, image=stage.producer_image,
            command=[PYTHON, "-c", HOLD],
        )
    )  # fmt: skip
    until("both are named as holders", lambda: leases(stage, node, key) == HOLDERS)

    # The driver may not be uninstalled now.
    with pytest.raises(KubectlError, match=f"{restricted}/engine"):
        kubectl.exec(OPERATOR, SYSTEM, PYTHON, "-m", "weightlease_operator.guard")

    # Agent and driver are replaced under the mounted pods.
    restart(stage, "agent", node)
    restart(stage, "csi-driver", node)
    count = next_line(kubectl, "engine", restricted)["count"]
    after = next_line(kubectl, "engine", restricted, after=count + 1)
    weights = (checkpoint / "model.safetensors").read_bytes()
    assert after["file"] == hashlib.sha256(weights).hexdigest()
    until("both are still named", lambda: leases(stage, node, key) == HOLDERS)
    kubectl.exec("holder", restricted, PYTHON, "-c", ACQUIRE)

    # The artifact outlives its resource for as long as a volume shows it.
    kubectl.delete("weightartifact", "minilm", restricted, wait=False)
    kubectl.delete("pod", "holder", restricted)
    until("one is left", lambda: leases(stage, node, key) == [f"{restricted}/engine"])
    stage.cluster.on_node(node, "test", "-f", f"{STORE}/{restricted}/artifacts/{key}/READY.json")
    kubectl.delete("pod", "engine", restricted)
    until(
        "it goes with its volume", lambda: not kubectl.find("weightartifact", "minilm", restricted)
    )
    assert key not in stage.cluster.on_node(node, "ls", f"{STORE}/{restricted}/artifacts")
    until("no volume is left", lambda: f'"{restricted}"' not in volume_records(stage, node))


HOLDERS = [f"{NAMESPACE}/engine", f"{NAMESPACE}/holder"]
ACQUIRE = "import weightlease; weightlease.connect().acquire('minilm').close()"
HOLD = (
    "import time, weightlease\n"
    "with weightlease.connect() as store, store.acquire('minilm') as lease:\n"
    "    time.sleep(600)\n"
)
