"""What one reconciliation looks at, and nothing else: plain values, gathered before planning.

Views are cut from API objects by `views`; an observation never holds a raw object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto

from weightlease.api.base import ObjectMeta
from weightlease.api.weight_artifact import WeightArtifactSpec, WeightArtifactStatus
from weightlease.api.weight_node import HeldArtifact, WantedArtifact
from weightlease.api.weight_producer import WeightProducerSpec
from weightlease.reasons import Reason
from weightlease_operator.settings import PlanSettings


@dataclass(frozen=True, slots=True)
class ArtifactView:
    """A WeightArtifact; `spec` is None when it does not parse, then `spec_error` says why."""

    metadata: ObjectMeta
    spec: WeightArtifactSpec | None
    status: WeightArtifactStatus
    spec_error: str = ""

    @property
    def id_prefix(self) -> str:
        """What the id of each of its entries begins with."""
        return f"{self.metadata.namespace}/{self.metadata.name}:"


@dataclass(frozen=True, slots=True)
class Taint:
    """A node's taint."""

    key: str
    effect: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A Node as far as placement reads it."""

    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    unschedulable: bool = False


@dataclass(frozen=True, slots=True)
class AgentView:
    """A WeightNode: what the operator asked of the node and what its agent reports."""

    name: str
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    observed_generation: int = 0
    reported_at: datetime | None = None
    entries: tuple[WantedArtifact, ...] = ()
    inventory: tuple[HeldArtifact, ...] = ()


class JobState(Enum):
    """Where a Job is in its life."""

    ACTIVE = auto()
    SUCCEEDED = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a Job ended; the digests are empty unless the producer stated them."""

    reason: Reason
    message: str
    retryable: bool
    key: str = ""
    manifest_sha256: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that stands in the way, for people."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class StartingPod:
    """A pod that has its node and no running container yet."""

    uid: str
    since: datetime


@dataclass(frozen=True, slots=True)
class JobView:
    """One prewarm Job.

    `content` and `retry` say for which content of the spec and which value of the retry
    annotation it was made. `blocked` is why an active Job's pod does not start; where nothing says
    why, `starting` is that pod.
    """

    name: str
    component: str
    node: str
    attempt: int
    content: str
    retry: str
    state: JobState = JobState.ACTIVE
    finished_at: datetime | None = None
    outcome: Outcome | None = None
    blocked: Problem | None = None
    starting: StartingPod | None = None
    node_uid: str = ""
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class ClaimView:
    """The source's PersistentVolumeClaim, when the source is one."""

    exists: bool
    one_node_only: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """How many bytes the working nodes had written at a moment, and the rate seen by then."""

    at: datetime
    done: int
    bytes_per_second: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything that `plan` may depend on."""

    artifact: ArtifactView
    producer: WeightProducerSpec | None
    nodes: Mapping[str, NodeView]
    agents: Mapping[str, AgentView]
    jobs: tuple[JobView, ...]
    now: datetime
    settings: PlanSettings
    claim: ClaimView | None = None
    namespace_terminating: bool = False
    refused: str = ""
    sample: Sample | None = None
