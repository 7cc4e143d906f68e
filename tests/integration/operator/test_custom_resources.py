"""The real API server admits what it should, refuses what it should, and fills in defaults."""

from __future__ import annotations

from typing import Any

import pytest

from apiserver import ApiServer, HttpError
from weightlease.api.weight_artifact import WeightArtifact
from weightlease.api.weight_node import WeightNode
from weightlease.api.weight_producer import WeightProducer

ROOT = "/apis/weightlease.io/v1alpha1"
HUB = {"huggingFace": {"repo": "org/model", "revision": "0" * 40}}


def artifact(name: str = "model", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "weightlease.io/v1alpha1",
        "kind": "WeightArtifact",
        "metadata": {"name": name},
        "spec": {"source": HUB} | spec,
    }


def hub(**changes: Any) -> dict[str, Any]:
    return {"huggingFace": HUB["huggingFace"] | changes}


def claim(path: str) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": "data", "path": path}}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "two sources": ({"source": HUB | claim(".")}, "exactly one of"),
    "no source": ({"source": {}}, "exactly one of"),
    "a branch": ({"source": hub(revision="main")}, "spec.source.huggingFace.revision"),
    "a repository with a space": ({"source": hub(repo="a b")}, "spec.source.huggingFace.repo"),
    "a credential in the endpoint": (
        {"source": hub(endpoint="https://user@host")},
        "spec.source.huggingFace.endpoint",
    ),
    "a path with dots": ({"source": claim("a/../b")}, "must be a relative path"),
    "an absolute path": ({"source": claim("/a")}, "must be a relative path"),
    "a backslash": ({"source": claim("a\\b")}, "must be a relative path"),
    "a component path with dots": ({"components": [{"path": ".."}]}, "must be a relative path"),
    "a relative host path": ({"source": {"hostPath": {"path": "models"}}}, "hostPath.path"),
    "two components of one name": (
        {"components": [{"name": "a"}, {"name": "a", "path": "b"}]},
        "Duplicate value",
    ),
    "no components": ({"components": []}, "spec.components"),
    "too many components": (
        {"components": [{"name": f"c{number}"} for number in range(65)]},
        "must have at most 64 items",
    ),
    "a bad component name": ({"components": [{"name": "Big"}]}, "spec.components[0].name"),
    "an unknown representation": (
        {"components": [{"representation": {"name": "int3"}}]},
        "Unsupported value",
    ),
    "an unknown storage class": ({"storageClass": "tape"}, "Unsupported value"),
    "an unknown field": ({"gpu": {"resident": True}}, "unknown field"),
    "a short fingerprint": ({"source": HUB | {"fingerprint": "ab"}}, "spec.source.fingerprint"),
    "no nodes at once": ({"rollout": {"maxConcurrentNodes": 0}}, "greater than or equal to 1"),
    "negative attempts": ({"rollout": {"backoffLimit": -1}}, "greater than or equal to 0"),
    "no time": ({"rollout": {"timeoutSeconds": 1}}, "greater than or equal to 30"),
    "a quantity that is none": (
        {"rollout": {"resources": {"limits": {"memory": "much"}}}},
        "spec.rollout.resources.limits",
    ),
    "a namespace that is none": ({"access": {"namespaces": ["Team_A"]}}, "spec.access.namespaces"),
    "a publisher without an account": (
        {"access": {"publishers": [{"namespace": "team"}]}},
        "serviceAccountName",
    ),
    "an unknown deletion policy": ({"deletionPolicy": "Orphan"}, "Unsupported value"),
    "an unknown operator": (
        {"placement": {"nodeAffinity": [{"matchExpressions": [{"key": "a", "operator": "Like"}]}]}},
        "Unsupported value",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_artifact_is_refused_with_its_reason(
    server: ApiServer, namespace: str, name: str
) -> None:
    spec, message = REFUSED[name]
    with pytest.raises(HttpError) as refused:
        server.create(f"{ROOT}/namespaces/{namespace}/weightartifacts", artifact(**spec))
    assert refused.value.status in (400, 422)
    assert message in refused.value.message


def test_defaults_are_those_of_the_models(server: ApiServer, namespace: str) -> None:
    path = f"{ROOT}/namespaces/{namespace}/weightartifacts"
    spec = server.create(path, artifact(rollout={"suspend": True}))["spec"]
    assert spec["components"] == [
        {"name": "model", "path": ".", "representation": {"name": "canonical"}}
    ]
    assert spec["storageClass"] == "disk"
    assert spec["deletionPolicy"] == "Delete"
    assert "access" not in spec
    assert spec["producerRef"] == {"name": "snapshot"}
    assert spec["rollout"] == {
        "suspend": True,
        "maxConcurrentNodes": 5,
        "backoffLimit": 3,
        "timeoutSeconds": 3600,
    }
    assert "placement" not in spec
    parsed = WeightArtifact.parse({"spec": artifact(rollout={"suspend": True})["spec"]}).spec
    assert WeightArtifact.parse({"spec": spec}).spec == parsed


def test_what_the_models_write_is_admitted_whole(server: ApiServer, namespace: str) -> None:
    spec = artifact(
        source=hub(tokenSecretRef={"name": "hub"}, endpoint="https://hub.example/x", include=["*"]),
        components=[{"name": "a", "path": "sub/a"}, {"name": "b"}],
        serviceAccountName="builder",
        imagePullSecrets=[{"name": "pull"}],
        placement={
            "nodeSelector": {"pool": "gpu"},
            "nodeAffinity": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}],
            "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        },
        storageClass="memory",
        rollout={"resources": {"limits": {"cpu": 2, "memory": "1.5Gi"}}},
        access={
            "namespaces": ["team-b"],
            "publishers": [{"serviceAccountName": "trainer", "namespace": "ml"}],
        },
        deletionPolicy="Retain",
    )
    path = f"{ROOT}/namespaces/{namespace}/weightartifacts"
    stored = WeightArtifact.parse(server.create(path, spec))
    assert stored.spec.rollout.resources is not None
    assert stored.spec.rollout.resources.limits == {"cpu": "2", "memory": "1.5Gi"}
    again = {"spec": stored.spec.to_json(), **artifact("again")} | {"spec": stored.spec.to_json()}
    server.create(path, again)


def test_a_null_counts_as_absent(server: ApiServer, namespace: str) -> None:
    path = f"{ROOT}/namespaces/{namespace}/weightartifacts"
    stored = server.create(path, artifact(rollout=None, serviceAccountName=None))
    assert WeightArtifact.parse(stored).spec.rollout.max_concurrent_nodes == 5


def test_kubectl_wait_sees_ready_only_for_the_current_generation(
    server: ApiServer, namespace: str
) -> None:
    path = f"{ROOT}/namespaces/{namespace}/weightartifacts"
    server.create(path, artifact())
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "AllNodesReady",
        "message": "",
        "lastTransitionTime": "2026-11-30T12:00:00Z",
        "observedGeneration": 1,
    }
    server.patch(f"{path}/model/status", {"status": {"conditions": [condition]}})
    wait = ["wait", "-n", namespace, "wa/model", "--for=condition=Ready", "--timeout=1s"]
    assert server.kubectl(*wait).returncode == 0
    server.patch(f"{path}/model", {"spec": {"storageClass": "memory"}})
    late = server.kubectl(*wait, check=False)
    assert late.returncode == 1
    assert "timed out" in late.stderr


def test_the_status_is_a_subresource(server: ApiServer, namespace: str) -> None:
    path = f"{ROOT}/namespaces/{namespace}/weightartifacts"
    server.create(path, artifact() | {"status": {"size": "1Gi"}})
    assert "status" not in server.get(f"{path}/model")
    changed = server.patch(f"{path}/model/status", {"spec": {"storageClass": "memory"}})
    assert changed["spec"]["storageClass"] == "disk"


def test_kubectl_lists_what_people_ask_for(server: ApiServer, namespace: str) -> None:
    path = f"{ROOT}/namespaces/{namespace}/weightartifacts"
    server.create(path, artifact())
    status = {"nodes": {"summary": "1/2", "failed": 1}, "size": "86.7Mi"}
    server.patch(f"{path}/model/status", {"status": status | {"progress": {"percent": 40}}})
    header, row = server.kubectl("get", "wa", "-n", namespace, "-o", "wide").stdout.splitlines()
    columns = "NAME READY REASON NODES SIZE PROGRESS% REPOSITORY CLAIM MODEL STORAGE FAILED AGE"
    assert header.split() == columns.split()
    assert row.split()[1:7] == ["1/2", "86.7Mi", "40", "org/model", "disk", "1"]
    assert (
        "weightartifact.weightlease.io/model"
        in server.kubectl("get", "weights", "-A", "-o", "name").stdout
    )


def producer(**spec: Any) -> dict[str, Any]:
    abi = {
        "id": "snapshot",
        "version": "1",
        "implementationFingerprint": "snapshot-1",
        "manifestSchema": "1",
        "restorerSchema": "1",
    }
    return {
        "apiVersion": "weightlease.io/v1alpha1",
        "kind": "WeightProducer",
        "metadata": {"generateName": "producer-"},
        "spec": {
            "image": "example/producer:1",
            "producer": abi,
            "sources": ["huggingFace"],
            "representations": ["canonical"],
        }
        | spec,
    }


def test_a_producer_is_admitted_and_parses(server: ApiServer) -> None:
    stored = WeightProducer.parse(server.create(f"{ROOT}/weightproducers", producer()))
    assert stored.spec.image_pull_policy == "IfNotPresent"


@pytest.mark.parametrize(
    "spec",
    [{"sources": []}, {"sources": ["ftp"]}, {"image": ""}, {"representations": ["int3"]}],
    ids=str,
)
def test_a_wrong_producer_is_refused(server: ApiServer, spec: dict[str, Any]) -> None:
    with pytest.raises(HttpError) as refused:
        server.create(f"{ROOT}/weightproducers", producer(**spec))
    assert refused.value.status == 422


def node(*entries: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "weightlease.io/v1alpha1",
        "kind": "WeightNode",
        "metadata": {"generateName": "node-"},
        "spec": {"artifacts": list(entries)},
    }


ENTRY = {
    "id": "team/model:model",
    "namespace": "team",
    "name": "model",
    "component": "model",
    "generation": 1,
    "storageClass": "disk",
    "key": "a" * 64,
    "manifestSha256": "",
    "job": "",
}


def test_a_weight_node_holds_each_entry_once(server: ApiServer) -> None:
    stored = WeightNode.parse(server.create(f"{ROOT}/weightnodes", node(ENTRY)))
    assert stored.spec.artifacts[0].key == "a" * 64
    with pytest.raises(HttpError) as refused:
        server.create(f"{ROOT}/weightnodes", node(ENTRY, ENTRY))
    assert "Duplicate value" in refused.value.message


@pytest.mark.parametrize(
    "change", [{"key": "abc"}, {"generation": -1}, {"storageClass": "tape"}], ids=str
)
def test_a_wrong_entry_is_refused(server: ApiServer, change: dict[str, Any]) -> None:
    with pytest.raises(HttpError) as refused:
        server.create(f"{ROOT}/weightnodes", node(ENTRY | change))
    assert refused.value.status == 422
