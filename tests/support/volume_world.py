"""An agent of a Kubernetes node with an artifact, as tests of volumes want it."""

from __future__ import annotations

from pathlib import Path

from agent_process import AgentProcess, wait_until
from cluster_node import JOB_POD, cluster_environment, entry
from fake_api_server import FakeApiServer
from small_artifact import identity

ASSETS = {"config.json": b"{}", "tokenizer/vocab.txt": b"a\nb\n"}


def agent_with_volumes(folder: Path, api: FakeApiServer, volumes: Path) -> AgentProcess:
    """An agent that asks `api` and serves volumes below `volumes`; not started yet."""
    environment = cluster_environment(api) | {
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
