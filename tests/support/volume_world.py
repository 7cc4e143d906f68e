"""An agent of a Kubernetes node with an artifact, as tests of volumes want it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent_process import QUICK, AgentProcess, wait_until
from fake_api_server import FakeApiServer
from small_artifact import identity

JOB_POD = "warm-minilm-x7k2p"
ASSETS = {"config.json": b"{}", "tokenizer/vocab.txt": b"a\nb\n"}


def entry(**changes: object) -> dict[str, Any]:
    """What the operator wants on the node."""
    return {
        "id": "team-a/minilm:model@",
        "namespace": "team-a",
        "name": "minilm",
        "component": "model",
        "generation": 1,
        "storageClass": "disk",
        "job": "warm-minilm",
    } | changes


def agent_with_volumes(folder: Path, api: FakeApiServer, volumes: Path) -> AgentProcess:
    """An agent that asks `api` and serves volumes below `volumes`; not started yet."""
    environment = QUICK | {
        "WEIGHTLEASE_KUBECONFIG": str(api.kubeconfig),
        "WEIGHTLEASE_NODE_NAME": api.node,
        "WEIGHTLEASE_VOLUMES": str(volumes),
    }
    return AgentProcess(folder, environment=environment, uid_mode=False)


def publish(agent: AgentProcess, api: FakeApiServer, payload: bytes) -> str:
    """Publish an artifact as the Job of `entry`, and let the spec name it; its key."""
    api.set_spec(entry())
    wait_until(lambda: agent.get("/readyz")[0] == 200)
    with agent.peer(token=api.add_pod(JOB_POD)) as job:
        published = job.publish(identity(), payload, ASSETS)
    api.set_spec(entry(key=published.key, manifestSha256=published.manifest_sha256))
    return published.key
