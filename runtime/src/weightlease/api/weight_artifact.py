"""WeightArtifact: weights that a set of nodes should hold, and how far they are."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.config import JsonDict

from weightlease.api.base import (
    Condition,
    DnsLabel,
    DnsSubdomain,
    Model,
    Resource,
    Sha256,
    Timestamp,
)
from weightlease.names import DEFAULT_COMPONENT, StorageClass

RelativePath = Annotated[str, Field(min_length=1, max_length=1024)]
Glob = Annotated[str, Field(min_length=1, max_length=256)]

_EXACTLY_ONE_SOURCE: JsonDict = {
    "x-kubernetes-validations": [
        {
            "rule": "[has(self.huggingFace), has(self.persistentVolumeClaim), "
            "has(self.hostPath)].filter(present, present).size() == 1",
            "message": "exactly one of huggingFace, persistentVolumeClaim and hostPath must be set",
        }
    ]
}
_PLAIN_PATH: JsonDict = {
    "x-kubernetes-validations": [
        {
            "rule": "!self.startsWith('/') && !self.contains('\\\\') && "
            "self.split('/').all(part, part != '..')",
            "message": "must be a relative path without '..' or backslashes",
        }
    ]
}


class ConditionType(StrEnum):
    """Conditions of a WeightArtifact."""

    READY = "Ready"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    CAPACITY_AVAILABLE = "CapacityAvailable"


class SecretKeyRef(Model):
    """A key of a Secret in the artifact's namespace; only its Jobs ever read it."""

    name: DnsSubdomain
    key: Annotated[str, Field(min_length=1, max_length=253)] = "token"


class HuggingFaceSource(Model):
    """A Hub repository at one commit."""

    repo: Annotated[
        str,
        Field(
            max_length=192,
            pattern=r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$",
            description="Repository id, `organisation/name`.",
        ),
    ]
    revision: Annotated[
        str,
        Field(
            pattern=r"^[0-9a-f]{40}$",
            description="Commit, 40 hex digits. Branches and tags move, so they are refused.",
        ),
    ]
    token_secret_ref: SecretKeyRef | None = None
    endpoint: Annotated[
        str | None,
        Field(
            pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$",
            max_length=512,
            description="Base address of a mirror of the Hub.",
        ),
    ] = None
    include: Annotated[list[Glob], Field(max_length=64)] = Field(
        default_factory=list, description="Only files that match one of these patterns."
    )
    exclude: Annotated[list[Glob], Field(max_length=64)] = Field(
        default_factory=list, description="No files that match one of these patterns."
    )


class PersistentVolumeClaimSource(Model):
    """A folder in a claim of the artifact's namespace."""

    claim_name: DnsSubdomain
    path: Annotated[RelativePath, Field(json_schema_extra=_PLAIN_PATH)] = "."


class HostPathSource(Model):
    """A folder on every chosen node; the administrator has to allow it."""

    path: Annotated[str, Field(min_length=2, max_length=4096, pattern=r"^/.+$")]


class Source(Model):
    """Where the canonical checkpoint is. Exactly one place."""

    model_config = ConfigDict(json_schema_extra=_EXACTLY_ONE_SOURCE)

    hugging_face: HuggingFaceSource | None = None
    persistent_volume_claim: PersistentVolumeClaimSource | None = None
    host_path: HostPathSource | None = None
    model_id: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=256,
            description="The model's name in the identity; copies that state the same name and "
            "hold the same bytes share one key.",
        ),
    ] = None
    fingerprint: Annotated[
        Sha256 | None,
        Field(description="Expected fingerprint of the selected files; another one is refused."),
    ] = None


class RepresentationName(StrEnum):
    """How an artifact stores its weights."""

    CANONICAL = "canonical"


class RepresentationSpec(Model):
    """`canonical`: the source's files verbatim, under their own names."""

    name: RepresentationName = RepresentationName.CANONICAL


class Component(Model):
    """One part of the source with an artifact of its own."""

    name: DnsLabel = DEFAULT_COMPONENT
    path: Annotated[RelativePath, Field(json_schema_extra=_PLAIN_PATH)] = "."
    representation: RepresentationSpec = Field(default_factory=RepresentationSpec)


class ProducerRef(Model):
    """The WeightProducer that makes the artifacts."""

    name: DnsSubdomain = "snapshot"


class LocalObjectReference(Model):
    """An object of the artifact's namespace, by name."""

    name: DnsSubdomain


class TolerationOperator(StrEnum):
    """How a toleration matches."""

    EXISTS = "Exists"
    EQUAL = "Equal"


class Toleration(Model):
    """A node taint that prewarming ignores."""

    key: str | None = None
    operator: TolerationOperator | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None


class NodeSelectorOperator(StrEnum):
    """How a requirement compares."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


class NodeSelectorRequirement(Model):
    """One requirement on a node's label."""

    key: Annotated[str, Field(min_length=1, max_length=317)]
    operator: NodeSelectorOperator
    values: list[str] = Field(default_factory=list)


class NodeSelectorTerm(Model):
    """Requirements that must all hold."""

    match_expressions: Annotated[list[NodeSelectorRequirement], Field(min_length=1)]


class Placement(Model):
    """Which nodes hold the artifact; all schedulable nodes when empty."""

    node_selector: dict[str, str] = Field(default_factory=dict)
    node_affinity: Annotated[list[NodeSelectorTerm], Field(max_length=16)] = Field(
        default_factory=list, description="A node is chosen when any one term holds."
    )
    tolerations: Annotated[list[Toleration], Field(max_length=64)] = Field(default_factory=list)


# People write `cpu: 2`, which YAML reads as a number.
Quantity = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if type(value) is int else value),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$",
        }
    ),
]


class ResourceRequirements(Model):
    """Requests and limits of a container."""

    requests: dict[str, Quantity] = Field(default_factory=dict)
    limits: dict[str, Quantity] = Field(default_factory=dict)


class Rollout(Model):
    """How prewarming proceeds over the nodes."""

    suspend: bool = False
    max_concurrent_nodes: Annotated[int, Field(ge=1, le=1000)] = 5
    backoff_limit: Annotated[
        int, Field(ge=0, le=100, description="Attempts per node beyond the first.")
    ] = 3
    timeout_seconds: Annotated[int, Field(ge=30, le=604800)] = 3600
    priority_class_name: DnsSubdomain | None = None
    resources: ResourceRequirements | None = None


class DeletionPolicy(StrEnum):
    """What becomes of the bytes when the WeightArtifact is deleted."""

    DELETE = "Delete"
    RETAIN = "Retain"


class Publisher(Model):
    """A service account whose pods may publish."""

    service_account_name: DnsSubdomain
    namespace: Annotated[
        DnsLabel | None, Field(description="The artifact's own namespace when absent.")
    ] = None


class Access(Model):
    """Who else may use the artifact; its own namespace's pods always may lease it."""

    namespaces: Annotated[
        list[DnsLabel],
        Field(
            max_length=64,
            description="Namespaces whose pods may lease it too.",
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ] = Field(default_factory=list)
    publishers: Annotated[
        list[Publisher],
        Field(
            max_length=16,
            description="Who may publish the artifact's keys, besides its prewarm Jobs.",
        ),
    ] = Field(default_factory=list)


class WeightArtifactSpec(Model):
    """What the user asks for; the operator never writes here."""

    source: Source
    components: Annotated[
        list[Component],
        Field(
            min_length=1,
            max_length=64,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        ),
    ] = Field(default_factory=lambda: [Component()])
    producer_ref: ProducerRef = Field(default_factory=ProducerRef)
    service_account_name: DnsSubdomain | None = None
    image_pull_secrets: Annotated[list[LocalObjectReference], Field(max_length=16)] = Field(
        default_factory=list
    )
    placement: Placement = Field(default_factory=Placement)
    storage_class: StorageClass = StorageClass.DISK
    rollout: Rollout = Field(default_factory=Rollout)
    access: Access = Field(default_factory=Access)
    deletion_policy: Annotated[
        DeletionPolicy,
        Field(
            description="Retain: nodes keep the bytes, and names go on meaning them, until an "
            "artifact of the same name takes them over or the namespace goes."
        ),
    ] = DeletionPolicy.DELETE


class ShardStatus(Model):
    """One identity of the artifact, fixed by the canary."""

    component: str
    coordinates: str = ""
    key: Sha256
    manifest_sha256: Sha256
    bytes: Annotated[int, Field(ge=0)]
    canary_node: str = ""


class NodeCounts(Model):
    """How many nodes are where; `summary` is `ready/desired`."""

    desired: int = 0
    ready: int = 0
    progressing: int = 0
    failed: int = 0
    summary: str = "0/0"


class Progress(Model):
    """Over all nodes that are working now; absent while none is."""

    percent: Annotated[int, Field(ge=0, le=100)]
    bytes_per_second: Annotated[int, Field(ge=0)] = 0
    eta_seconds: Annotated[int | None, Field(ge=0)] = None


class NodeFailure(Model):
    """Why one node does not hold the artifact."""

    node: str
    component: str
    reason: str
    message: Annotated[str, Field(max_length=4096)] = ""
    attempts: int = 0
    retry_at: Timestamp | None = None


class WeightArtifactStatus(Model):
    """What the operator observes."""

    observed_generation: Annotated[int, Field(ge=0)] = 0
    content: Annotated[
        str,
        Field(
            max_length=64,
            description="Digest of what decides about the bytes, and the generation it appeared "
            "with; when it changes, a new canary fixes new keys.",
        ),
    ] = ""
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=8,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        ),
    ] = Field(default_factory=list)
    shards: Annotated[list[ShardStatus], Field(max_length=1024)] = Field(default_factory=list)
    nodes: NodeCounts = Field(default_factory=NodeCounts)
    size: Annotated[
        str, Field(max_length=32, description="Bytes of all shards, for people: `86.7Mi`.")
    ] = ""
    progress: Progress | None = None
    failures: Annotated[list[NodeFailure], Field(max_length=10, description="The first ten.")] = (
        Field(default_factory=list)
    )


class WeightArtifact(Resource):
    """Weights that every chosen node should hold, exact and verified."""

    kind: str = "WeightArtifact"
    spec: WeightArtifactSpec
    status: WeightArtifactStatus = Field(default_factory=WeightArtifactStatus)

    @classmethod
    def parse(cls, value: Any) -> WeightArtifact:
        """Read the API server's object.

        Raises:
            pydantic.ValidationError: an object that an older or newer schema admitted.

        """
        return cls.model_validate(value)
