"""Build a prewarm Job from a decision: no input but its arguments, the same Job for the same ones.

backoffLimit is 0: the operator owns attempts, so that each has its own reason, its own wait and its
own place in the status. The pod failure policy does two things that this leaves open: a disruption
(drain, preemption) makes a new pod without costing an attempt, and a code that no retry can help is
named in the Job's own condition.
"""

from __future__ import annotations

import posixpath
from typing import Any

from weightlease.api.base import ObjectMeta
from weightlease.api.weight_artifact import Component, Source, WeightArtifactSpec
from weightlease.api.weight_producer import WeightProducerSpec
from weightlease.names import (
    API_VERSION,
    CSI_DRIVER,
    ENV_PRODUCER_REQUEST,
    SOCKET_DIRECTORY,
    TOKEN_AUDIENCE,
    TOKEN_PATH,
)
from weightlease.producer.request import (
    SCHEMA_VERSION,
    HubSource,
    PathSource,
    ProducerRequest,
    RequestedComponent,
    RequestedProducer,
    encode_request,
)
from weightlease.reasons import NON_RETRYABLE_EXIT_CODES
from weightlease_operator.content import Content
from weightlease_operator.labels import (
    ANNOTATION_ARTIFACT,
    ANNOTATION_CONTENT,
    ANNOTATION_NODE,
    ANNOTATION_NODE_UID,
    ANNOTATION_RETRY_SEEN,
    job_labels,
)
from weightlease_operator.plans import Start
from weightlease_operator.settings import AgentVolume, JobSettings

SCRATCH = "/scratch"
SOURCE = "/source"
# volumes of every prewarm pod, whatever its source
OWN_VOLUMES = ("agent", "token", "scratch")
PRODUCER_UID = 65532
TOKEN_SECONDS = 3600
CONTAINER = "producer"

Json = dict[str, Any]


def build_job(
    start: Start,
    metadata: ObjectMeta,
    spec: WeightArtifactSpec,
    producer: WeightProducerSpec,
    settings: JobSettings,
) -> Json:
    """The Job as JSON for the API server."""
    content = Content.parse(start.content)
    labels = job_labels(
        artifact=metadata.name,
        uid=metadata.uid,
        component=start.component,
        node=start.node,
        generation=content.generation if content else metadata.generation,
        attempt=start.attempt,
    )
    annotations = {
        ANNOTATION_ARTIFACT: f"{metadata.namespace}/{metadata.name}",
        ANNOTATION_NODE: start.node,
        ANNOTATION_NODE_UID: start.node_uid,
        ANNOTATION_CONTENT: start.content,
        ANNOTATION_RETRY_SEEN: start.retry,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": start.name,
            "namespace": metadata.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [_owner(metadata)],
        },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": spec.rollout.timeout_seconds,
            "podFailurePolicy": _FAILURE_POLICY,
            "template": {
                "metadata": {
                    "labels": labels,
                    "annotations": {
                        ANNOTATION_ARTIFACT: f"{metadata.namespace}/{metadata.name}",
                        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                    },
                },
                "spec": _pod(start, metadata, spec, producer, settings),
            },
        },
    }


def _owner(metadata: ObjectMeta) -> Json:
    return {
        "apiVersion": API_VERSION,
        "kind": "WeightArtifact",
        "name": metadata.name,
        "uid": metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


_FAILURE_POLICY: Json = {
    "rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {
            "action": "FailJob",
            "onExitCodes": {
                "containerName": CONTAINER,
                "operator": "In",
                "values": list(NON_RETRYABLE_EXIT_CODES),
            },
        },
    ]
}


def _pod(
    start: Start,
    metadata: ObjectMeta,
    spec: WeightArtifactSpec,
    producer: WeightProducerSpec,
    settings: JobSettings,
) -> Json:
    pod: Json = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "affinity": _pinned_to(start.node),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": PRODUCER_UID,
            "runAsGroup": PRODUCER_UID,
            # makes the scratch folder and the token ours; claims are mounted read-only, so kept
            "fsGroup": PRODUCER_UID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(start, metadata, spec, producer, settings)],
        "volumes": _volumes(spec.source, settings),
    }
    if spec.placement.tolerations:
        pod["tolerations"] = [each.to_json() for each in spec.placement.tolerations]
    if spec.service_account_name:
        pod["serviceAccountName"] = spec.service_account_name
    if spec.image_pull_secrets:
        pod["imagePullSecrets"] = [each.to_json() for each in spec.image_pull_secrets]
    if spec.rollout.priority_class_name:
        pod["priorityClassName"] = spec.rollout.priority_class_name
    return pod


def _pinned_to(node: str) -> Json:
    """Affinity, not nodeName: the scheduler stays in charge of resources and volumes."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"nodeSelectorTerms": [term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def _container(
    start: Start,
    metadata: ObjectMeta,
    spec: WeightArtifactSpec,
    producer: WeightProducerSpec,
    settings: JobSettings,
) -> Json:
    mounts: list[Json] = [
        {"name": "agent", "mountPath": SOCKET_DIRECTORY, "readOnly": True},
        {"name": "scratch", "mountPath": SCRATCH},
    ]
    if settings.agent_volume is AgentVolume.HOST_PATH:
        directory = posixpath.dirname(TOKEN_PATH)
        mounts.append({"name": "token", "mountPath": directory, "readOnly": True})
    if spec.source.hugging_face is None:
        mounts.append({"name": "source", "mountPath": SOURCE, "readOnly": True})
    resources = spec.rollout.resources or producer.resources
    container: Json = {
        "name": CONTAINER,
        "image": producer.image,
        "imagePullPolicy": producer.image_pull_policy.value,
        "env": _environment(start, metadata, spec, producer),
        "resources": {name: part for name, part in resources.to_json().items() if part},
        "volumeMounts": mounts,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }
    if producer.command:
        container["command"] = list(producer.command)
    return container


def _environment(
    start: Start, metadata: ObjectMeta, spec: WeightArtifactSpec, producer: WeightProducerSpec
) -> list[Json]:
    request = encode_request(producer_request(start, metadata, spec, producer))
    variables: list[Json] = [
        {"name": ENV_PRODUCER_REQUEST, "value": request},
        # the root filesystem is read-only
        {"name": "HOME", "value": SCRATCH},
        {"name": "TMPDIR", "value": SCRATCH},
    ]
    hub = spec.source.hugging_face
    if hub is not None and hub.token_secret_ref is not None:
        reference = hub.token_secret_ref.to_json()
        variables.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    return variables


def producer_request(
    start: Start, metadata: ObjectMeta, spec: WeightArtifactSpec, producer: WeightProducerSpec
) -> ProducerRequest:
    """What the Job is asked to make."""
    component = _component(spec, start.component)
    abi = producer.producer
    return ProducerRequest(
        schema_version=SCHEMA_VERSION,
        artifact=f"{metadata.namespace}/{metadata.name}:{start.component}",
        source=_requested_source(spec.source),
        component=RequestedComponent(name=component.name, path=component.path),
        producer=RequestedProducer(
            id=abi.id,
            version=abi.version,
            implementation_fingerprint=abi.implementation_fingerprint,
            manifest_schema=abi.manifest_schema,
            restorer_schema=abi.restorer_schema,
        ),
        representation=component.representation.name.value,
        storage_class=spec.storage_class.value,
        model_id=spec.source.model_id or "",
        fingerprint=spec.source.fingerprint or "",
        expected_key=start.key,
        expected_manifest_sha256=start.manifest_sha256,
        scratch=SCRATCH,
    )


def _component(spec: WeightArtifactSpec, name: str) -> Component:
    return next(component for component in spec.components if component.name == name)


def _requested_source(source: Source) -> HubSource | PathSource:
    if source.hugging_face is not None:
        hub = source.hugging_face
        return HubSource(
            repo=hub.repo,
            revision=hub.revision,
            endpoint=hub.endpoint or "",
            include=tuple(hub.include),
            exclude=tuple(hub.exclude),
        )
    if source.persistent_volume_claim is not None:
        claim = source.persistent_volume_claim
        path = posixpath.normpath(posixpath.join(SOURCE, claim.path))
        return PathSource(path=path, origin=claim.claim_name)
    if source.host_path is not None:
        return PathSource(path=SOURCE, origin=source.host_path.path)
    raise ValueError("spec.source names no place; the planner checks that before it starts a Job")


def _volumes(source: Source, settings: JobSettings) -> list[Json]:
    volumes = _agent_volumes(settings)
    volumes.append({"name": "scratch", "emptyDir": {"sizeLimit": settings.scratch_size}})
    if source.persistent_volume_claim is not None:
        claim = {"claimName": source.persistent_volume_claim.claim_name, "readOnly": True}
        volumes.append({"name": "source", "persistentVolumeClaim": claim})
    elif source.host_path is not None:
        path = {"path": source.host_path.path, "type": "Directory"}
        volumes.append({"name": "source", "hostPath": path})
    return volumes


def _agent_volumes(settings: JobSettings) -> list[Json]:
    """The socket, and a token where the socket does not say by itself which pod connects."""
    if settings.agent_volume is AgentVolume.CSI:
        return [{"name": "agent", "csi": {"driver": CSI_DRIVER, "readOnly": True}}]
    token = {
        "path": posixpath.basename(TOKEN_PATH),
        "audience": TOKEN_AUDIENCE,
        "expirationSeconds": TOKEN_SECONDS,
    }
    return [
        {"name": "agent", "hostPath": {"path": settings.socket_directory, "type": "Directory"}},
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": token}]}},
    ]
