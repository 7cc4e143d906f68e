"""Cut views from API objects, as the API server's JSON; a tenant may have written any of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from weightlease.api.base import ObjectMeta
from weightlease.api.weight_artifact import WeightArtifactSpec, WeightArtifactStatus
from weightlease.api.weight_node import WeightNode
from weightlease.api.weight_producer import WeightProducer, WeightProducerSpec
from weightlease.names import LABEL_ARTIFACT_UID, LABEL_ATTEMPT, LABEL_NODE, LABEL_SHARD
from weightlease_operator.labels import (
    ANNOTATION_CONTENT,
    ANNOTATION_NODE,
    ANNOTATION_NODE_UID,
    ANNOTATION_RETRY_SEEN,
)
from weightlease_operator.observation import AgentView, ArtifactView, NodeView, Taint

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A Job without its pods; `failure` is the reason of its Failed condition."""

    name: str
    namespace: str
    uid: str
    artifact_uid: str
    component: str
    node: str
    node_uid: str
    attempt: int
    content: str
    retry: str
    succeeded: bool
    failure: str
    failure_message: str
    finished_at: datetime | None
    deleting: bool


@dataclass(frozen=True, slots=True)
class PodRecord:
    """A pod of a Job: how its container ended, or why it does not start."""

    name: str
    job: str
    namespace: str
    artifact_uid: str
    uid: str
    node: str
    created: str
    phase: str
    exit_code: int | None
    exit_reason: str
    termination: str
    waiting_reason: str
    waiting_message: str
    unschedulable: str


def parse_time(text: object) -> datetime | None:
    """An RFC 3339 time with a zone; None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def artifact_view(raw: Raw) -> ArtifactView:
    metadata = ObjectMeta.model_validate(raw["metadata"])
    spec, error = None, ""
    try:
        spec = WeightArtifactSpec.model_validate(raw.get("spec", {}))
    except ValidationError as invalid:
        error = _short(invalid)
    try:
        status = WeightArtifactStatus.model_validate(raw.get("status") or {})
    except ValidationError:  # another version wrote it; everything in it can be observed again
        status = WeightArtifactStatus()
    return ArtifactView(metadata, spec, status, error)


def producer_view(raw: Raw) -> WeightProducerSpec | None:
    """None for an object that does not parse: to Jobs it is as if it were not there."""
    try:
        return WeightProducer.parse(raw).spec
    except ValidationError:
        return None


def node_view(raw: Raw) -> NodeView:
    metadata, spec = raw["metadata"], raw.get("spec") or {}
    conditions = (raw.get("status") or {}).get("conditions") or ()
    return NodeView(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        labels=metadata.get("labels") or {},
        taints=tuple(
            Taint(taint["key"], taint["effect"], taint.get("value") or "")
            for taint in spec.get("taints") or ()
        ),
        ready=any(each["type"] == "Ready" and each["status"] == "True" for each in conditions),
        unschedulable=bool(spec.get("unschedulable")),
    )


def agent_view(raw: Raw) -> AgentView:
    """Raises pydantic.ValidationError when the spec, which is ours, does not parse."""
    try:
        node = WeightNode.parse(raw)
    except ValidationError:
        # An agent of another version may report what we cannot read; its spec still counts.
        node = WeightNode.parse({name: part for name, part in raw.items() if name != "status"})
    return AgentView(
        name=node.metadata.name,
        uid=node.metadata.uid,
        resource_version=node.metadata.resource_version,
        generation=node.metadata.generation,
        observed_generation=node.status.observed_generation,
        reported_at=parse_time(node.status.reported_at),
        entries=tuple(node.spec.artifacts),
        inventory=tuple(node.status.inventory),
    )


def job_record(raw: Raw) -> JobRecord:
    metadata, status = raw["metadata"], raw.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    conditions = {
        each["type"]: each for each in status.get("conditions") or () if each["status"] == "True"
    }
    failed, complete = conditions.get("Failed"), conditions.get("Complete")
    attempt = labels.get(LABEL_ATTEMPT, "")
    return JobRecord(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata.get("uid", ""),
        artifact_uid=labels.get(LABEL_ARTIFACT_UID, ""),
        component=labels.get(LABEL_SHARD, ""),
        node=annotations.get(ANNOTATION_NODE) or labels.get(LABEL_NODE, ""),
        node_uid=annotations.get(ANNOTATION_NODE_UID, ""),
        attempt=int(attempt) if attempt.isdecimal() else 0,
        content=annotations.get(ANNOTATION_CONTENT, ""),
        retry=annotations.get(ANNOTATION_RETRY_SEEN, ""),
        succeeded=complete is not None,
        failure=(failed or {}).get("reason", "") or ("Failed" if failed else ""),
        failure_message=(failed or {}).get("message", ""),
        finished_at=parse_time((failed or complete or {}).get("lastTransitionTime")),
        deleting="deletionTimestamp" in metadata,
    )


def pod_record(raw: Raw) -> PodRecord:
    metadata, status = raw["metadata"], raw.get("status") or {}
    labels = metadata.get("labels") or {}
    container: Raw = next(iter(status.get("containerStatuses") or ()), {})
    state = container.get("state") or {}
    terminated, waiting = state.get("terminated") or {}, state.get("waiting") or {}
    scheduled: Raw = next(
        (each for each in status.get("conditions") or () if each["type"] == "PodScheduled"), {}
    )
    return PodRecord(
        name=metadata["name"],
        job=labels.get("batch.kubernetes.io/job-name") or labels.get("job-name", ""),
        namespace=metadata["namespace"],
        artifact_uid=labels.get(LABEL_ARTIFACT_UID, ""),
        uid=metadata.get("uid", ""),
        node=(raw.get("spec") or {}).get("nodeName", ""),
        created=metadata.get("creationTimestamp") or "",
        phase=status.get("phase", ""),
        exit_code=terminated.get("exitCode"),
        exit_reason=terminated.get("reason", ""),
        termination=terminated.get("message", ""),
        waiting_reason=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        unschedulable=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
    )


def _short(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"spec.{where}: {first['msg']}"
