"""A node of a fake cluster: what its spec wants, and how its agent is told where the cluster is."""

from __future__ import annotations

from typing import Any

from agent_process import QUICK
from fake_api_server import FakeApiServer

JOB_POD = "warm-minilm-x7k2p"


def entry(name: str = "minilm", namespace: str = "team-a", **changes: object) -> dict[str, Any]:
    """What the operator wants on the node."""
    return {
        "id": f"{namespace}/{name}:model@",
        "namespace": namespace,
        "name": name,
        "component": "model",
        "generation": 1,
        "storageClass": "disk",
        "job": f"warm-{name}",
    } | changes


def cluster_environment(api: FakeApiServer) -> dict[str, str]:
    """Settings of an agent that asks `api`."""
    return QUICK | {
        "WEIGHTLEASE_KUBECONFIG": str(api.kubeconfig),
        "WEIGHTLEASE_NODE_NAME": api.node,
    }
