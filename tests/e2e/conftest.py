"""One real cluster for all end-to-end tests: two nodes, the chart, a local Hub.

`WEIGHTLEASE_KEEP_CLUSTER=1` leaves the cluster running for a look; otherwise it is removed, also
after a failure, whose logs and objects are kept in `build/e2e`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stage import HUB_TOKEN, Stage
from weightlease_demo import manifests
from weightlease_demo.__main__ import cluster_address
from weightlease_demo.canonical import canonical_digest
from weightlease_demo.cluster import REPOSITORY, DevCluster, install_chart
from weightlease_demo.hub import checkpoint_folder, running_hub

LOGS = REPOSITORY / "build" / "e2e"
PACE = {
    # The defaults are made for fleets; a test that waits for a retry wants it soon.
    "operator": {
        "plan": {"agentGraceSeconds": 45, "deleteGraceSeconds": 30, "backoffBaseSeconds": 2}
    },
    "agent": {"intervals": {"status": 1, "heartbeat": 5, "leaseSweep": 1, "artifactSweep": 2}},
}


@pytest.fixture(scope="session")
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    cluster = DevCluster.of_repository()
    try:
        cluster.up(2)
        images = cluster.images()
        install_chart(cluster, images, PACE)
        kubectl = cluster.kubectl()
        nodes = tuple(sorted(node["metadata"]["name"] for node in kubectl.list("nodes")))
        with running_hub(cluster_address(kubectl), token=HUB_TOKEN) as hub:
            yield Stage(cluster, kubectl, images, hub, nodes)
    finally:
        if request.session.testsfailed:
            shutil.rmtree(LOGS, ignore_errors=True)
            cluster.collect(LOGS)
        if not os.environ.get("WEIGHTLEASE_KEEP_CLUSTER"):
            cluster.down()


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """Folder of the real MiniLM checkpoint."""
    return checkpoint_folder()


@pytest.fixture(scope="session")
def canonical(checkpoint: Path) -> str:
    """Digest of the embeddings of a process that maps the original file itself."""
    return canonical_digest(checkpoint)


@pytest.fixture
def team(stage: Stage, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of this test's own, with the Hub's token."""
    name = request.node.name.replace("_", "-")[:40].rstrip("-") + "-ns"
    stage.kubectl.apply(
        manifests.namespace(name), manifests.hub_token_secret("hub-token", name, HUB_TOKEN)
    )
    yield name
    stage.kubectl.delete("namespace", name)
