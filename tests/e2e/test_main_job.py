"""The main job: a custom resource becomes verified bytes on every node; pods compute with them."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from scenes import STORE, held, next_line, prewarmed_on, ready, run_program, shard_key
from stage import HUB_TOKEN, Stage
from weightlease_demo import manifests
from weightlease_demo.__main__ import serving_report
from weightlease_demo.canonical import canonical_digest

NAMESPACE = "main-job"


@dataclass(frozen=True)
class Warm:
    """An artifact from the Hub that both nodes hold."""

    stage: Stage
    key: str

    @property
    def payload(self) -> str:
        """Path of the weights in a node's store."""
        return f"{STORE}/{NAMESPACE}/artifacts/{self.key}/model.safetensors"


@pytest.fixture(scope="module")
def warm(stage: Stage) -> Iterator[Warm]:
    kubectl = stage.kubectl
    kubectl.apply(
        manifests.namespace(NAMESPACE),
        manifests.hub_token_secret("hub-token", NAMESPACE, HUB_TOKEN),
        manifests.hub_artifact("minilm", NAMESPACE, stage.hub, credentials="hub-token"),
    )
    yield Warm(stage, shard_key(ready(kubectl, "minilm", NAMESPACE)))
    kubectl.delete("namespace", NAMESPACE)


def test_a_custom_resource_becomes_a_job_and_a_ready_artifact_on_each_node(warm: Warm) -> None:
    kubectl = warm.stage.kubectl
    assert prewarmed_on(kubectl, "minilm", NAMESPACE) == list(warm.stage.nodes)
    entries = [held(kubectl, node, warm.key) for node in warm.stage.nodes]
    assert all(entry is not None and entry["state"] == "Ready" for entry in entries)
    assert len({entry["manifestSha256"] for entry in entries if entry}) == 1


def test_kubectl_shows_what_a_user_needs(warm: Warm) -> None:
    table = warm.stage.kubectl("get", "wa", "-n", NAMESPACE).splitlines()
    assert table[0].split()[:2] == ["NAME", "READY"]
    assert {"NODES", "SIZE", "AGE"} <= set(table[0].split())
    assert {"minilm", "True", "2/2"} <= set(table[1].split())


def test_a_stored_file_is_the_sources_file_bit_by_bit(warm: Warm, checkpoint: Path) -> None:
    for node in warm.stage.nodes:
        warm.stage.cluster.on_node(node, "cmp", warm.payload, f"{checkpoint}/model.safetensors")


def test_the_nodes_keep_separate_stores(warm: Warm) -> None:
    inodes, uuids = set(), set()
    for node in warm.stage.nodes:
        inodes.add(warm.stage.cluster.on_node(node, "stat", "-c", "%d:%i", warm.payload))
        domain = warm.stage.cluster.on_node(node, "cat", f"{STORE}/{NAMESPACE}/domain.json")
        uuids.add(json.loads(domain)["domain_uuid"])
        status = warm.stage.kubectl.get("weightnode", node)["status"]
        assert json.loads(domain)["domain_uuid"] in {
            entry["domainUuid"] for entry in status["domains"]
        }
    assert len(inodes) == len(uuids) == 2


def test_pods_on_each_node_compute_what_canonical_loading_computes(
    warm: Warm, canonical: str
) -> None:
    kubectl = warm.stage.kubectl
    for node in warm.stage.nodes:
        kubectl.create(
            manifests.serving_pod(
                f"serve-{node}",
                NAMESPACE,
                node=node,
                image=warm.stage.producer_image,
                artifact="minilm",
            )
        )
    for node in warm.stage.nodes:
        kubectl.wait_for_condition("pod", f"serve-{node}", "Ready", NAMESPACE)
        report = serving_report(kubectl, f"serve-{node}", NAMESPACE)
        assert report["key"] == warm.key
        assert report["embeddingSha256"] == canonical


def test_one_flipped_exponent_byte_of_a_used_layer_breaks_that_equality(
    checkpoint: Path, canonical: str, tmp_path: Path
) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(checkpoint, changed)
    with open(changed / "model.safetensors", "r+b") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        entry = header["encoder.layer.3.attention.self.query.weight"]
        assert entry["dtype"] == "F32"
        position = 8 + length + entry["data_offsets"][0] + 3
        file.seek(position)
        old = file.read(1)[0]
        file.seek(position)
        file.write(bytes([old ^ 0x01]))
    assert canonical_digest(changed) != canonical


def test_two_pods_of_one_node_share_the_artifacts_pages(warm: Warm) -> None:
    kubectl, node = warm.stage.kubectl, warm.stage.nodes[0]
    kubectl.delete("pod", f"serve-{node}", NAMESPACE)
    names = ("share-1", "share-2")
    for name in names:
        run_program(
            kubectl, name, NAMESPACE, node=node, image=warm.stage.producer_image,
            arguments=["hold_lease.py", "minilm"],
        )  # fmt: skip
    first = {name: next_line(kubectl, name, NAMESPACE) for name in names}
    # Each measures again after both have touched every page.
    after = [
        next_line(kubectl, name, NAMESPACE, after=line["count"] + 1) for name, line in first.items()
    ]
    size = after[0]["artifactBytes"]
    assert all(line["rss"] >= 0.99 * size for line in after)
    assert 0.95 * size <= sum(line["pss"] for line in after) <= 1.05 * size
    for name in names:
        kubectl.delete("pod", name, NAMESPACE)


def test_a_pod_of_another_namespace_gets_nothing(warm: Warm, team: str) -> None:
    kubectl = warm.stage.kubectl
    program = (
        "import json, weightlease\n"
        "from weightlease.errors import WeightLeaseError\n"
        "out = {}\n"
        f"for name in ('{NAMESPACE}/minilm', 'minilm', '{warm.key}'):\n"
        "    try:\n"
        "        with weightlease.connect() as store: store.acquire(name)\n"
        "        out[name] = 'LEASED'\n"
        "    except WeightLeaseError as error: out[name] = str(error.failure.code)\n"
        "print(json.dumps(out))\n"
    )
    pod = manifests.consumer_pod(
        "stranger",
        team,
        node=warm.stage.nodes[0],
        image=warm.stage.producer_image,
        command=["/opt/weightlease/bin/python", "-c", program],
    )
    kubectl.create(pod)
    kubectl("wait", "pod/stranger", "-n", team, "--for=jsonpath={.status.phase}=Succeeded",
            "--timeout=60s", seconds=70)  # fmt: skip
    outcome = json.loads(kubectl.logs("stranger", team))
    assert outcome[f"{NAMESPACE}/minilm"] == "permission_denied"
    assert outcome["minilm"] in {"local_miss", "permission_denied"}
    assert outcome[warm.key] in {"local_miss", "permission_denied"}


def test_a_claim_holds_the_same_model_as_the_hub(
    stage: Stage, team: str, checkpoint: Path, canonical: str
) -> None:
    stage.kubectl.apply(
        *manifests.claim_on_host_path("weights", team, str(checkpoint)),
        manifests.claim_artifact("minilm", team, "weights"),
    )
    key = shard_key(ready(stage.kubectl, "minilm", team))
    assert all(held(stage.kubectl, node, key) for node in stage.nodes)
    node = stage.nodes[1]
    stage.kubectl.create(
        manifests.serving_pod(
            "serve", team, node=node, image=stage.producer_image, artifact="minilm"
        )
    )
    stage.kubectl.wait_for_condition("pod", "serve", "Ready", team)
    assert serving_report(stage.kubectl, "serve", team)["embeddingSha256"] == canonical
    stage.kubectl.delete("pod", "serve", team)
    stage.kubectl.delete("weightartifact", "minilm", team)
    stage.kubectl.delete("pvc", "weights", team)
    stage.kubectl.delete("pv", f"{team}-weights")


def test_the_memory_class_keeps_weights_in_a_tmpfs(stage: Stage, team: str) -> None:
    artifact = manifests.hub_artifact(
        "minilm", team, stage.hub, credentials="hub-token", storageClass="memory"
    )
    stage.kubectl.apply(artifact)
    key = shard_key(ready(stage.kubectl, "minilm", team))
    for node in stage.nodes:
        path = f"/var/lib/weightlease/memory/{team}/artifacts/{key}/model.safetensors"
        assert stage.cluster.on_node(node, "stat", "-f", "-c", "%T", path).strip() == "tmpfs"
    run_program(
        stage.kubectl, "hold", team, node=stage.nodes[0], image=stage.producer_image,
        arguments=["hold_lease.py", "minilm"],
    )  # fmt: skip
    assert next_line(stage.kubectl, "hold", team)["artifactBytes"] > 90_000_000
    stage.kubectl.delete("pod", "hold", team)
    stage.kubectl.delete("weightartifact", "minilm", team)
