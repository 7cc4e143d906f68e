"""What goes on, and what comes back, when a process is killed or a peer is hostile."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import host_processes
from scenes import (
    PYTHON,
    STORE,
    condition,
    held,
    jobs,
    lines,
    next_line,
    prewarmed_on,
    ready,
    run_program,
    shard_key,
)
from stage import Stage
from weightlease_demo import manifests
from weightlease_demo.kubectl import Object, until

ROOT = {"runAsUser": 0, "runAsNonRoot": False}
AGENT = "weightlease_node_agent"


def hub_artifact(stage: Stage, namespace: str, **spec: Any) -> Object:
    return manifests.hub_artifact("minilm", namespace, stage.hub, credentials="hub-token", **spec)


def only_on(node: str) -> Object:
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def a_producer(stage: Stage, name: str, command: list[str], *, image: str = "") -> Object:
    """The chart's producer with another command or image."""
    producer = stage.kubectl.get("weightproducer", "snapshot")
    spec = producer["spec"] | {"image": image or stage.producer_image, "command": command}
    return {
        "apiVersion": manifests.API_VERSION,
        "kind": "WeightProducer",
        "metadata": {"name": name},
        "spec": spec | {"imagePullPolicy": "Never"},
    }


def node_cgroup(node: str) -> str:
    return f"-{node}/" if node else ""


def test_a_killed_agent_takes_no_lease_with_it(stage: Stage, team: str, checkpoint: Path) -> None:
    kubectl, node = stage.kubectl, stage.nodes[0]
    kubectl.apply(hub_artifact(stage, team, placement=only_on(node)))
    key = shard_key(ready(kubectl, "minilm", team))
    run_program(
        kubectl, "hold", team, node=node, image=stage.producer_image,
        arguments=["hold_lease.py", "minilm"],
    )  # fmt: skip
    before = next_line(kubectl, "hold", team)
    until("the agent names the holder", lambda: holders(stage, node, key) == [f"{team}/hold"])

    host_processes.kill_hard(AGENT, node_cgroup(node))

    # The pod reads on, and reads the same.
    assert next_line(kubectl, "hold", team, after=before["count"] + 2)["sha256"] == before["sha256"]
    killed = time.time()
    until("the agent is back", lambda: reported_since(stage, node, killed), seconds=120)
    assert holders(stage, node, key) == [f"{team}/hold"]

    # Nothing wants the artifact any more, but it is leased: it stays, and the user learns why.
    kubectl.delete("weightartifact", "minilm", team, wait=False)
    until(
        "the condition names the pod",
        lambda: (
            f"{team}/hold" in json.dumps(kubectl.get("weightartifact", "minilm", team)["status"])
        ),
    )
    stage.cluster.on_node(node, "test", "-f", f"{STORE}/{team}/artifacts/{key}/READY.json")
    now = next_line(kubectl, "hold", team, after=before["count"] + 5)
    assert now["sha256"] == before["sha256"]

    kubectl.delete("pod", "hold", team)
    until(
        "the artifact goes with its last lease",
        lambda: not kubectl.find("weightartifact", "minilm", team),
    )
    remains = stage.cluster.on_node(
        node, "ls", f"{STORE}/{team}/artifacts", f"{STORE}/{team}/assets"
    )
    assert key not in remains


def test_a_producer_killed_half_way_leaves_nothing_and_the_next_attempt_succeeds(
    stage: Stage, team: str
) -> None:
    kubectl, node = stage.kubectl, stage.nodes[1]
    program = (
        "import os, signal, sys, time\n"
        "child = os.fork()\n"
        "if child:\n"
        "    _, status = os.waitpid(child, 0)\n"
        "    sys.exit(137 if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))\n"
        "from weightlease.client import publication\n"
        "whole, sent = publication._StreamedFile.write, [0]\n"
        "def write(self, data):\n"
        "    whole(self, data)\n"
        "    sent[0] += len(data)\n"
        "    if sent[0] > 45_000_000:\n"
        "        time.sleep(12)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "publication._StreamedFile.write = write\n"
        "from weightlease.producer.__main__ import main\n"
        "sys.exit(main())\n"
    )
    kubectl.apply(
        a_producer(stage, "dies-half-way", [PYTHON, "-c", program]),
        hub_artifact(stage, team, placement=only_on(node), producerRef={"name": "dies-half-way"}),
    )
    publishing = until("half of it is there", lambda: publishing_entry(stage, node, team))
    assert publishing["bytesDone"] >= 40_000_000
    listing = stage.cluster.on_node(node, "ls", f"{STORE}/{team}/artifacts")
    assert publishing["key"] not in listing
    until("the attempt failed", lambda: any_failure(stage, team), seconds=90)
    # The next attempt runs what the producer's recipe says by then.
    kubectl.apply(a_producer(stage, "dies-half-way", []))
    artifact = ready(kubectl, "minilm", team, seconds=120)
    assert shard_key(artifact) == publishing["key"]
    assert not artifact["status"].get("failures")
    assert stage.cluster.on_node(node, "ls", f"{STORE}/{team}/tmp").strip() == ""
    kubectl.delete("weightartifact", "minilm", team)
    kubectl.delete("weightproducer", "dies-half-way")


def test_root_can_change_nothing_through_a_lease(stage: Stage, team: str, checkpoint: Path) -> None:
    kubectl, node = stage.kubectl, stage.nodes[0]
    kubectl.apply(hub_artifact(stage, team, placement=only_on(node)))
    key = shard_key(ready(kubectl, "minilm", team))
    run_program(
        kubectl, "attack", team, node=node, image=stage.producer_image,
        arguments=["attack_lease.py", "minilm"], security=ROOT,
    )  # fmt: skip
    (outcome,) = until("it has tried", lambda: lines(kubectl, "attack", team))
    assert "WROTE" not in outcome.values(), outcome
    assert outcome["reopen model.safetensors"] == "EROFS"
    assert outcome["fchmod model.safetensors"] == "EROFS"
    require_unchanged(stage, node, team, key, checkpoint)
    kubectl.delete("pod", "attack", team)


def test_a_root_producer_that_keeps_every_descriptor_can_change_nothing_afterwards(
    stage: Stage, team: str, checkpoint: Path
) -> None:
    kubectl, node = stage.kubectl, stage.nodes[0]
    kubectl.apply(
        a_producer(stage, "never-starts", [], image="localhost/no-such-image:1"),
        hub_artifact(stage, team, placement=only_on(node), producerRef={"name": "never-starts"}),
    )
    (job,) = until("its Job exists", lambda: jobs(kubectl, "minilm", team))
    # A tenant owns its namespace: a pod of its own may bear the name of the Job's pod.
    name = f"{job['metadata']['name']}-abcde"
    run_program(
        kubectl, name, team, node=node, image=stage.producer_image,
        arguments=["attack_publication.py", stage.hub.repo, "/source"],
        security=ROOT, folders={"/source": str(checkpoint)},
    )  # fmt: skip
    said = until(
        "it has tried", lambda: lines(kubectl, name, team)[1:2] and lines(kubectl, name, team)
    )
    published, tried = said[0]["published"], said[1]["attempts"]
    assert "WROTE" not in tried.values(), tried
    assert tried["plant in the socket's folder"] == "EROFS"
    until(
        "the agent reports it",
        lambda: (held(kubectl, node, published) or {}).get("state") == "Ready",
    )
    require_unchanged(stage, node, team, published, checkpoint)
    kubectl.delete("pod", name, team)
    kubectl.delete("weightartifact", "minilm", team)
    kubectl.delete("weightproducer", "never-starts")


def test_an_operator_killed_in_the_middle_makes_no_job_twice(stage: Stage, team: str) -> None:
    kubectl = stage.kubectl
    kubectl.apply(hub_artifact(stage, team))
    until("the first Job exists", lambda: jobs(kubectl, "minilm", team))
    host_processes.kill_hard("weightlease_operator", "weightlease-")
    ready(kubectl, "minilm", team, seconds=180)
    assert prewarmed_on(kubectl, "minilm", team) == list(stage.nodes)
    kubectl.delete("weightartifact", "minilm", team)


def test_a_new_node_warms_by_itself_and_a_gone_one_is_forgotten(stage: Stage, team: str) -> None:
    kubectl = stage.kubectl
    kubectl.apply(hub_artifact(stage, team))
    key = shard_key(ready(kubectl, "minilm", team))
    added = stage.cluster.add_node()
    until("three nodes are ready", lambda: summary(stage, team) == "3/3", seconds=150)
    entry = held(kubectl, added, key)
    assert entry is not None
    assert entry["state"] == "Ready"
    stage.cluster.remove_node(added)
    until("two nodes are wanted", lambda: summary(stage, team) == "2/2", seconds=90)
    until("its WeightNode is gone", lambda: not kubectl.find("weightnode", added))
    assert condition(kubectl.get("weightartifact", "minilm", team), "Ready")["status"] == "True"
    kubectl.delete("weightartifact", "minilm", team)
    for node in stage.nodes:
        listing = stage.cluster.on_node(node, "ls", f"{STORE}/{team}/artifacts")
        assert key not in listing


def holders(stage: Stage, node: str, key: str) -> list[str]:
    entry = held(stage.kubectl, node, key) or {}
    return [lease["holder"] for lease in entry.get("leases", [])]


def reported_since(stage: Stage, node: str, moment: float) -> bool:
    reported = stage.kubectl.get("weightnode", node)["status"].get("reportedAt", "")
    seconds = time.mktime(time.strptime(reported[:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone
    return seconds > moment


def publishing_entry(stage: Stage, node: str, namespace: str) -> Object | None:
    status = stage.kubectl.get("weightnode", node).get("status", {})
    entries = [
        entry
        for entry in status.get("inventory", [])
        if entry["namespace"] == namespace
        and entry["state"] == "Publishing"
        and entry.get("bytesDone", 0) >= 40_000_000
    ]
    return entries[0] if entries else None


def any_failure(stage: Stage, namespace: str) -> bool:
    status = stage.kubectl.get("weightartifact", "minilm", namespace)["status"]
    return bool(status.get("failures"))


def summary(stage: Stage, namespace: str) -> str:
    found: str = stage.kubectl.get("weightartifact", "minilm", namespace)["status"]["nodes"][
        "summary"
    ]
    return found


def require_unchanged(stage: Stage, node: str, namespace: str, key: str, checkpoint: Path) -> None:
    """The stored weights are still the source's, by content."""
    expected = hashlib.sha256((checkpoint / "model.safetensors").read_bytes()).hexdigest()
    path = f"{STORE}/{namespace}/artifacts/{key}/model.safetensors"
    assert stage.cluster.on_node(node, "sha256sum", path).split()[0] == expected
    assert stage.cluster.on_node(node, "stat", "-c", "%a %u", path).split() == ["444", "47000"]
