"""`make demo`: from nothing to pods on two nodes that serve from shared, verified weights.

Leaves the cluster running; `make clean-cluster` removes it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from weightlease_demo import manifests
from weightlease_demo.canonical import canonical_digest
from weightlease_demo.cluster import ClusterError, DevCluster, install_chart
from weightlease_demo.hub import checkpoint_folder, running_hub
from weightlease_demo.kubectl import Kubectl, KubectlError, Timeout, until

NODES = 2
NAMESPACE = "demo"
ARTIFACT = "minilm"
TOKEN = "demo-token"  # noqa: S105 - protects a public checkpoint on a local server


def main() -> int:
    cluster = DevCluster.of_repository()
    try:
        run(cluster)
    except (ClusterError, KubectlError, Timeout) as error:
        print(f"demo failed: {error}", file=sys.stderr)
        return 1
    return 0


def run(cluster: DevCluster) -> None:
    """The whole story, in the order that a user would live it."""
    with step(f"a Kubernetes with {NODES} nodes"):
        cluster.up(NODES)
    with step("images of this working tree, loaded into both nodes"):
        images = cluster.images()
    with step("helm install"):
        install_chart(cluster, images)
    kubectl = cluster.kubectl()
    nodes = sorted(node["metadata"]["name"] for node in kubectl.list("nodes"))
    with running_hub(cluster_address(kubectl), token=TOKEN) as hub:
        with step(f"WeightArtifact {NAMESPACE}/{ARTIFACT} from {hub.repo}@{hub.commit[:12]}"):
            kubectl.apply(
                manifests.namespace(NAMESPACE),
                manifests.hub_token_secret("hub-token", NAMESPACE, TOKEN),
                manifests.hub_artifact(ARTIFACT, NAMESPACE, hub, credentials="hub-token"),
            )
            kubectl.wait_for_condition("weightartifact", ARTIFACT, "Ready", NAMESPACE)
        print(kubectl("get", "wa,wn", "-n", NAMESPACE, "-o", "wide"))
    with step("two serving pods on each node"):
        pods = [(f"{node}-{number}", node) for node in nodes for number in (1, 2)]
        for name, node in pods:
            kubectl.delete("pod", name, NAMESPACE)
            kubectl.apply(
                manifests.serving_pod(
                    name, NAMESPACE, node=node, image=images["producer"], artifact=ARTIFACT
                )
            )
        for name, _ in pods:
            kubectl.wait_for_condition("pod", name, "Ready", NAMESPACE)
    with step("canonical loading of the original file, in a separate process"):
        expected = canonical_digest(checkpoint_folder())
    show([serving_report(kubectl, name) for name, _ in pods], expected)
    print(kubectl("get", "weightnodes"))


def serving_report(kubectl: Kubectl, pod: str, namespace: str = NAMESPACE) -> dict[str, Any]:
    """What a serving pod measures of itself now."""
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}:{manifests.SERVING_PORT}/proxy/report"
    report: dict[str, Any] = until(
        f"a report of {pod}", lambda: json.loads(kubectl("get", "--raw", path))
    )
    return report


def cluster_address(kubectl: Kubectl) -> str:
    """An address of this host that pods reach: the API server's."""
    address: str = kubectl.get("service", "kubernetes", "default")["spec"]["clusterIP"]
    return address


def show(reports: list[dict[str, Any]], expected: str) -> None:
    """The table of what each pod leased, shares and computed.

    Raises:
        ClusterError: a pod's embeddings are not the canonical ones, bit by bit.

    """
    print(f"\n{'POD':<12} {'LEASE':>10} {'ARTIFACT':>10} {'RSS':>10} {'PSS':>10}  EMBEDDINGS")
    for report in reports:
        equal = report["embeddingSha256"] == expected
        print(
            f"{report['pod']:<12} {report['leaseMilliseconds']:>7.1f} ms "
            f"{mebibytes(report['artifactBytes'])} {mebibytes(report['rssBytes'])} "
            f"{mebibytes(report['pssBytes'])}  "
            f"{'bit-equal to canonical loading' if equal else 'DIFFERENT'} {report['embedding']}"
        )
    different = [report["pod"] for report in reports if report["embeddingSha256"] != expected]
    if different:
        raise ClusterError(f"embeddings of {', '.join(different)} differ from canonical loading")
    print("\nPSS is each pod's share of the pages that its node holds once.\n")


def mebibytes(count: int) -> str:
    """A right-aligned amount of memory."""
    return f"{count / 2**20:>6.1f} MiB"


@contextmanager
def step(text: str) -> Iterator[None]:
    """Announce a step, and say how long it took."""
    print(f"==> {text}", flush=True)
    began = time.monotonic()
    yield
    print(f"    {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
