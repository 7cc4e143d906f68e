"""Several tenants on a node: room, and grants across namespaces."""

from __future__ import annotations

from typing import Any

from scenes import condition, next_line, ready, run_program, shard_key
from stage import Stage
from weightlease_demo import manifests
from weightlease_demo.cluster import NAMESPACE, RELEASE
from weightlease_demo.kubectl import Object, until

AGENT = f"daemonset/{RELEASE}-agent"
BUDGET = "WEIGHTLEASE_CAPACITY__DISK__BUDGET"


def hub_artifact(stage: Stage, namespace: str, node: str, **spec: Any) -> Object:
    placement = {"nodeSelector": {"kubernetes.io/hostname": node}}
    return manifests.hub_artifact(
        "minilm", namespace, stage.hub, credentials="hub-token", placement=placement, **spec
    )


def rolled_out(stage: Stage) -> None:
    stage.kubectl(
        "rollout", "status", AGENT, "-n", NAMESPACE, "--timeout=180s", seconds=200
    )  # fmt: skip


def with_budget(stage: Stage, budget: str) -> None:
    stage.kubectl("set", "env", AGENT, "-n", NAMESPACE, "-c", "agent", f"{BUDGET}={budget}")
    rolled_out(stage)


def test_an_artifact_waits_for_room_and_comes_when_the_budget_is_raised(
    stage: Stage, team: str
) -> None:
    kubectl, node = stage.kubectl, stage.nodes[0]
    with_budget(stage, "1Mi")
    try:
        kubectl.apply(hub_artifact(stage, team, node))
        until("the condition says so", lambda: lacks_room(stage, team), seconds=120)
        (blocked,) = until("the node names it", lambda: blocked_on(stage, node))
        assert (blocked["limit"], blocked["reason"]) == ("NodeBudget", "InsufficientCapacity")
        assert "agent.capacity.disk.budget" in blocked["message"]
    finally:
        with_budget(stage, "0")
    artifact = ready(kubectl, "minilm", team, seconds=180)
    until("there is room", lambda: not lacks_room(stage, team))
    assert shard_key(artifact)
    assert not blocked_on(stage, node)


def lacks_room(stage: Stage, namespace: str) -> bool:
    found = condition(stage.kubectl.get("weightartifact", "minilm", namespace), "CapacityAvailable")
    return (found.get("status"), found.get("reason")) == ("False", "InsufficientCapacity")


def blocked_on(stage: Stage, node: str) -> list[Object]:
    blocked: list[Object] = stage.kubectl.get("weightnode", node)["status"].get("blocked", [])
    return blocked


def test_another_namespace_leases_what_it_is_granted_and_nothing_else(
    stage: Stage, team: str
) -> None:
    kubectl, node = stage.kubectl, stage.nodes[0]
    granted, stranger = f"{team[:50]}-granted", f"{team[:50]}-stranger"
    kubectl.apply(*(manifests.namespace(name) for name in (granted, stranger)))
    try:
        kubectl.apply(hub_artifact(stage, team, node, access={"namespaces": [granted]}))
        ready(kubectl, "minilm", team)
        run_program(
            kubectl, "reader", granted, node=node, image=stage.producer_image,
            arguments=["hold_lease.py", f"{team}/minilm"],
        )  # fmt: skip
        assert next_line(kubectl, "reader", granted)["artifactBytes"] > 0
        run_program(
            kubectl, "spy", stranger, node=node, image=stage.producer_image,
            arguments=["ask_once.py", f"{team}/minilm"],
        )  # fmt: skip
        until(
            "the stranger is refused",
            lambda: "permission_denied" in kubectl.logs("spy", stranger),
        )
    finally:
        for name in (granted, stranger):
            kubectl.delete("namespace", name)
