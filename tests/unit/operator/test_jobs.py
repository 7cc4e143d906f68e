"""The Job that a decision becomes."""

from __future__ import annotations

import json
import posixpath
import re
from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest

from planning_world import HUB, KEY, MANIFEST, PRODUCER
from weightlease.api.base import ObjectMeta
from weightlease.api.weight_artifact import WeightArtifactSpec
from weightlease.names import CSI_DRIVER, SOCKET_PATH, TOKEN_AUDIENCE, TOKEN_PATH
from weightlease.producer.request import HubSource, PathSource, decode_request
from weightlease.reasons import NON_RETRYABLE_EXIT_CODES
from weightlease_operator.jobs import build_job
from weightlease_operator.plans import Start
from weightlease_operator.settings import AgentVolume, JobSettings

METADATA = ObjectMeta(name="model", namespace="team", uid="uid-1", generation=3)
START = Start(
    name="model-0123456789",
    component="model",
    node="node-1.example",
    attempt=2,
    content="0123456789abcdef-3",
    retry="again",
    key=KEY,
    manifest_sha256=MANIFEST,
)
SOURCES: dict[str, dict[str, Any]] = {
    "hub": HUB,
    "claim": {"persistentVolumeClaim": {"claimName": "data", "path": "models/a"}},
    "host": {"hostPath": {"path": "/srv/models"}},
}


BY_HOST_PATH = JobSettings(agent_volume=AgentVolume.HOST_PATH)


def job(start: Start = START, settings: JobSettings | None = None, **spec: Any) -> dict[str, Any]:
    parsed = WeightArtifactSpec.model_validate({"source": HUB} | spec)
    return build_job(start, METADATA, parsed, PRODUCER, settings or JobSettings())


def pod(built: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = built["spec"]["template"]["spec"]
    return found


def environment(built: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod(built)["containers"]
    return {each["name"]: each for each in container["env"]}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("version", ["1.33", "1.37"])
@pytest.mark.parametrize("settings", [JobSettings(), BY_HOST_PATH])
def test_kubernetes_accepts_it(source: str, version: str, settings: JobSettings) -> None:
    resources = {"resources": {"limits": {"cpu": 2}}}
    built = job(settings=settings, source=SOURCES[source], rollout=resources)
    kubernetes_validate.validate(built, version, strict=True)


def test_its_labels_and_annotations_say_what_it_is_for() -> None:
    built = job()
    labels, annotations = built["metadata"]["labels"], built["metadata"]["annotations"]
    assert labels["weightlease.io/artifact-uid"] == "uid-1"
    assert labels["weightlease.io/shard"] == "model"
    assert labels["weightlease.io/attempt"] == "2"
    assert labels["weightlease.io/generation"] == "3"
    assert annotations["weightlease.io/node"] == "node-1.example"
    assert annotations["weightlease.io/artifact"] == "team/model"
    assert built["spec"]["template"]["metadata"]["labels"] == labels


def test_long_names_fit_into_labels_and_stay_whole_in_annotations() -> None:
    node = ".".join(["n" * 60] * 4)
    built = job(replace(START, node=node))
    label = built["metadata"]["labels"]["weightlease.io/node"]
    assert len(label) <= 63
    assert label[0].isalnum()
    assert label[-1].isalnum()
    assert built["metadata"]["annotations"]["weightlease.io/node"] == node


def test_labels_of_names_that_are_alike_where_they_are_cut_differ_and_end_well() -> None:
    nodes = ["n" * 62 + "." + "n" * 60 + end for end in "ab"]
    built = [job(replace(START, node=node))["metadata"]["labels"] for node in nodes]
    labels = {each["weightlease.io/node"] for each in built}
    assert len(labels) == 2
    for label in labels:
        assert re.fullmatch(r"[a-z0-9]([-.a-z0-9]{0,61}[a-z0-9])?", label)


def test_the_artifact_owns_it() -> None:
    (owner,) = job()["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("WeightArtifact", "model", "uid-1")
    assert owner["controller"] is True


def test_it_is_pinned_to_its_node_and_left_to_the_scheduler() -> None:
    built = pod(job())
    (term,) = built["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term == {
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1.example"]}]
    }
    assert "nodeName" not in built


def test_the_operator_owns_attempts_and_disruptions_cost_none() -> None:
    spec = job(rollout={"timeoutSeconds": 60})["spec"]
    assert spec["backoffLimit"] == 0
    assert spec["activeDeadlineSeconds"] == 60
    assert "ttlSecondsAfterFinished" not in spec
    ignore, fail = spec["podFailurePolicy"]["rules"]
    assert (ignore["action"], ignore["onPodConditions"][0]["type"]) == (
        "Ignore",
        "DisruptionTarget",
    )
    assert fail["onExitCodes"]["values"] == list(NON_RETRYABLE_EXIT_CODES)


@pytest.mark.parametrize("source", SOURCES)
def test_it_meets_the_restricted_profile_but_for_a_source_that_is_a_host_path(source: str) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted"""
    built = pod(job(source=SOURCES[source]))
    assert not {"hostNetwork", "hostPID", "hostIPC"} & built.keys()
    assert built["securityContext"]["runAsNonRoot"] is True
    assert built["securityContext"]["runAsUser"] == 65532
    assert built["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = built["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    allowed = {"csi", "projected", "emptyDir", "persistentVolumeClaim"}
    host = {"source"} if source == "host" else set()
    for volume in built["volumes"]:
        assert (set(volume) - {"name"} <= allowed) or volume["name"] in host


def test_it_reaches_the_agent_by_a_volume_that_says_who_it_is() -> None:
    built = pod(job())
    volumes = {each["name"]: each for each in built["volumes"]}
    mounts = {each["name"]: each for each in built["containers"][0]["volumeMounts"]}
    assert volumes["agent"]["csi"] == {"driver": CSI_DRIVER, "readOnly": True}
    assert posixpath.dirname(SOCKET_PATH) == mounts["agent"]["mountPath"]
    assert "token" not in volumes.keys() | mounts.keys()
    assert built["automountServiceAccountToken"] is False


def test_without_the_driver_it_mounts_the_hosts_socket_and_a_token_for_nothing_else() -> None:
    built = pod(job(settings=BY_HOST_PATH))
    assert built["automountServiceAccountToken"] is False
    volumes = {each["name"]: each for each in built["volumes"]}
    mounts = {each["name"]: each for each in built["containers"][0]["volumeMounts"]}
    assert volumes["agent"]["hostPath"] == {"path": "/run/weightlease", "type": "Directory"}
    assert mounts["agent"]["readOnly"] is True
    assert SOCKET_PATH.startswith(mounts["agent"]["mountPath"] + "/")
    (projected,) = volumes["token"]["projected"]["sources"]
    token = projected["serviceAccountToken"]
    assert (token["audience"], token["expirationSeconds"]) == (TOKEN_AUDIENCE, 3600)
    assert f"{mounts['token']['mountPath']}/{token['path']}" == TOKEN_PATH


def test_a_dollar_in_a_spec_is_no_reference_to_a_variable() -> None:
    odd = "$(HF_TOKEN)$$(HOME)\\$$x"
    built = job(source=HUB | {"modelId": odd})
    value = environment(built)["WEIGHTLEASE_PRODUCER_REQUEST"]["value"]
    assert "$" not in value
    assert decode_request(value).model_id == odd


def test_the_request_carries_the_canarys_digests_and_the_producers_abi() -> None:
    built = job(source=HUB | {"modelId": "org/base"}, storageClass="memory")
    request = decode_request(environment(built)["WEIGHTLEASE_PRODUCER_REQUEST"]["value"])
    assert isinstance(request.source, HubSource)
    assert request.source.repo == "org/model"
    assert (request.expected_key, request.expected_manifest_sha256) == (KEY, MANIFEST)
    assert (request.model_id, request.storage_class) == ("org/base", "memory")
    assert request.artifact == "team/model:model"
    assert request.producer.implementation_fingerprint == "snapshot-1"


@pytest.mark.parametrize(
    ("source", "path", "origin"),
    [("claim", "/source/models/a", "data"), ("host", "/source", "/srv/models")],
)
def test_a_mounted_source_is_read_only(source: str, path: str, origin: str) -> None:
    built = job(source=SOURCES[source])
    request = decode_request(environment(built)["WEIGHTLEASE_PRODUCER_REQUEST"]["value"])
    assert request.source == PathSource(path=path, origin=origin)
    mounts = {each["name"]: each for each in pod(built)["containers"][0]["volumeMounts"]}
    assert mounts["source"] == {"name": "source", "mountPath": "/source", "readOnly": True}


def test_a_hub_token_comes_from_the_users_secret_and_never_in_the_request() -> None:
    source = {"huggingFace": HUB["huggingFace"] | {"tokenSecretRef": {"name": "hub"}}}
    variables = environment(job(source=source))
    reference = {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert variables["HF_TOKEN"]["valueFrom"] == reference
    assert "hub" not in json.loads(variables["WEIGHTLEASE_PRODUCER_REQUEST"]["value"])["source"]
    assert "HF_TOKEN" not in environment(job())


def test_users_choose_account_priority_pull_secrets_tolerations_and_resources() -> None:
    built = pod(
        job(
            serviceAccountName="builder",
            imagePullSecrets=[{"name": "pull"}],
            placement={"tolerations": [{"key": "gpu", "operator": "Exists"}]},
            rollout={"priorityClassName": "low", "resources": {"limits": {"memory": "1Gi"}}},
        )
    )
    assert built["serviceAccountName"] == "builder"
    assert built["imagePullSecrets"] == [{"name": "pull"}]
    assert built["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert built["priorityClassName"] == "low"
    assert built["containers"][0]["resources"] == {"limits": {"memory": "1Gi"}}


def test_the_same_decision_makes_the_same_job() -> None:
    assert json.dumps(job()) == json.dumps(job())
