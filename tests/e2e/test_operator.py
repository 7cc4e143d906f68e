"""What the operator does when agents, namespaces, canaries, leaders or the API server go."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import host_processes
from devcluster.settings import Settings
from scenes import (
    PYTHON,
    STORE,
    condition,
    jobs,
    next_line,
    prewarmed_on,
    ready,
    run_program,
    shard_key,
)
from stage import HUB_TOKEN, Stage
from weightlease_demo import manifests
from weightlease_demo.cluster import NAMESPACE, RELEASE
from weightlease_demo.kubectl import Object, until

LEASE = f"{RELEASE}-operator"


def hub_artifact(stage: Stage, namespace: str, **spec: Any) -> Object:
    return manifests.hub_artifact("minilm", namespace, stage.hub, credentials="hub-token", **spec)


def leader(stage: Stage) -> str:
    """The operator's pod that leads."""
    lease = stage.kubectl.find("lease", LEASE, NAMESPACE) or {}
    holder: str = lease.get("spec", {}).get("holderIdentity", "")
    return holder


def is_kept(stage: Stage, node: str, namespace: str, key: str) -> bool:
    return key in stage.cluster.on_node(node, "ls", f"{STORE}/{namespace}/artifacts")


def agents_on(node: str) -> list[int]:
    """Process ids of a node's agent; other clusters of this machine may have such a node too."""
    network = Settings.from_environment(os.environ).network
    cgroup = network.cgroup(int(node.removeprefix("node-")))
    return host_processes.pids("weightlease_node_agent", f"/{cgroup}/")


def test_a_deletion_does_not_wait_for_an_agent_that_is_gone(stage: Stage, team: str) -> None:
    kubectl, (node, gone) = stage.kubectl, stage.nodes
    kubectl.apply(hub_artifact(stage, team))
    key = shard_key(ready(kubectl, "minilm", team))
    (pid,) = agents_on(gone)
    os.kill(pid, signal.SIGSTOP)
    try:
        kubectl.delete("weightartifact", "minilm", team, wait=False)
        until(
            "the artifact goes without the silent agent",
            lambda: not kubectl.find("weightartifact", "minilm", team),
            seconds=90,
        )
        assert is_kept(stage, gone, team, key)
        assert not is_kept(stage, node, team, key)
    finally:
        if pid in agents_on(gone):
            os.kill(pid, signal.SIGCONT)
    until(
        "the agent that is back cleans what nothing names",
        lambda: not is_kept(stage, gone, team, key),
        seconds=120,
    )


def test_a_namespace_goes_whole_while_its_weights_are_leased(stage: Stage, team: str) -> None:
    kubectl, node = stage.kubectl, stage.nodes[0]
    namespace = f"{team[:50]}-whole"
    kubectl.apply(
        manifests.namespace(namespace),
        manifests.hub_token_secret("hub-token", namespace, HUB_TOKEN),
        hub_artifact(stage, namespace),
    )
    key = shard_key(ready(kubectl, "minilm", namespace))
    run_program(
        kubectl, "hold", namespace, node=node, image=stage.producer_image,
        arguments=["hold_lease.py", "minilm"],
    )  # fmt: skip
    next_line(kubectl, "hold", namespace)
    kubectl.delete("namespace", namespace, wait=False)
    until("the namespace is gone", lambda: not kubectl.find("namespace", namespace), seconds=120)
    until(
        "its bytes go",
        lambda: not any(is_kept(stage, each, namespace, key) for each in stage.nodes),
    )


def test_a_canary_that_keeps_failing_is_replaced_and_can_be_armed_again(
    stage: Stage, team: str
) -> None:
    kubectl, (bad, good) = stage.kubectl, stage.nodes
    program = (
        "import sys\n"
        f"if '/{bad}/' in open('/proc/self/mountinfo').read():\n"
        "    sys.exit(81)\n"
        "from weightlease.producer.__main__ import main\n"
        "sys.exit(main())\n"
    )
    spec = kubectl.get("weightproducer", "snapshot")["spec"]
    command = {"command": [PYTHON, "-c", program], "imagePullPolicy": "Never"}
    producer = {
        "apiVersion": manifests.API_VERSION,
        "kind": "WeightProducer",
        "metadata": {"name": "fails-on-one-node"},
        "spec": spec | command | {"image": stage.producer_image},
    }
    rollout = {"backoffLimit": 0}
    kubectl.apply(
        producer,
        hub_artifact(stage, team, producerRef={"name": "fails-on-one-node"}, rollout=rollout),
    )
    until("the other node is the canary", lambda: canaries(stage, team) == [good], seconds=120)
    artifact = kubectl.get("weightartifact", "minilm", team)
    (failure,) = artifact["status"]["failures"]
    assert (failure["node"], failure["reason"]) == (bad, "SourceUnavailable")
    assert condition(artifact, "Degraded")["status"] == "True"
    kubectl.apply(producer | {"spec": spec | {"image": stage.producer_image}})
    kubectl("annotate", "weightartifact", "minilm", "-n", team, "weightlease.io/retry=again")
    ready(kubectl, "minilm", team)
    kubectl.delete("weightartifact", "minilm", team)
    kubectl.delete("weightproducer", "fails-on-one-node")


def canaries(stage: Stage, namespace: str) -> list[str]:
    status = stage.kubectl.get("weightartifact", "minilm", namespace).get("status", {})
    return [shard["canaryNode"] for shard in status.get("shards", [])]


def test_another_operator_takes_over_from_a_leader_that_was_killed(stage: Stage, team: str) -> None:
    kubectl = stage.kubectl
    first = until("an operator leads", lambda: leader(stage))
    kubectl.apply(hub_artifact(stage, team))
    until("the first Job exists", lambda: jobs(kubectl, "minilm", team))
    kubectl("delete", "pod", first, "-n", NAMESPACE, "--grace-period=0", "--force")
    until("another leads", lambda: leader(stage) not in ("", first), seconds=60)
    ready(kubectl, "minilm", team)
    assert prewarmed_on(kubectl, "minilm", team) == list(stage.nodes)


def test_an_api_server_that_restarts_interrupts_nothing_for_good(
    stage: Stage, team: str, checkpoint: Path
) -> None:
    kubectl, node = stage.kubectl, stage.nodes[0]
    kubectl.apply(hub_artifact(stage, team))
    ready(kubectl, "minilm", team)
    run_program(
        kubectl, "hold", team, node=node, image=stage.producer_image,
        arguments=["hold_lease.py", "minilm"],
    )  # fmt: skip
    before = next_line(kubectl, "hold", team)
    stage.cluster.restart_api()
    assert next_line(kubectl, "hold", team, after=before["count"])["sha256"] == before["sha256"]
    kubectl.apply(manifests.hub_artifact("again", team, stage.hub, credentials="hub-token"))
    ready(kubectl, "again", team)
