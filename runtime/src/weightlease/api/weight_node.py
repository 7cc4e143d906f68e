"""WeightNode: what one node should hold (by the operator) and what it holds (by its agent)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from weightlease.api.base import DnsLabel, Model, Resource, Sha256, Timestamp
from weightlease.names import StorageClass

_NO_KEY = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$", max_length=64)]


class WantedArtifact(Model):
    """One shard that this node should hold.

    `key` and `manifestSha256` are empty until the canary has fixed them; the agent then refuses to
    publish anything else for this entry. `job` names the Job that may publish it, empty when none
    may. Bytes of a key that no entry names are removed as soon as nobody leases them.

    `accessNamespaces` may lease it besides `namespace`. `publishers` are service accounts, each as
    `namespace/name`, whose pods may publish `key` besides the Job. `retained`: the WeightArtifact
    is gone and its deletionPolicy is Retain; the entry goes on meaning its bytes.
    """

    id: Annotated[
        str, Field(description="namespace/name:component@coordinates, unique", max_length=512)
    ]
    namespace: str
    name: str
    component: str
    coordinates: str = ""
    generation: Annotated[int, Field(ge=0)]
    storage_class: StorageClass
    key: _NO_KEY = ""
    manifest_sha256: _NO_KEY = ""
    job: str = ""
    access_namespaces: Annotated[
        list[DnsLabel],
        Field(max_length=64, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ] = Field(default_factory=list)
    publishers: Annotated[
        list[Annotated[str, Field(min_length=3, max_length=317)]],
        Field(max_length=16, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ] = Field(default_factory=list)
    retained: bool = False


class WeightNodeSpec(Model):
    """Written by the operator alone."""

    artifacts: Annotated[
        list[WantedArtifact],
        Field(
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["id"],
            }
        ),
    ] = Field(default_factory=list)


class HeldState(StrEnum):
    """How far one artifact is on this node."""

    PUBLISHING = "Publishing"
    READY = "Ready"
    INVALID = "Invalid"


class LeaseHolder(Model):
    """Who leases an artifact: a pod, or a process of a bare host."""

    holder: str
    since: Timestamp


class HeldArtifact(Model):
    """One artifact of this node's inventory.

    `wantedId` is the entry of the spec that this publication was made for; it ties the canary's key
    to the artifact, and is empty for bytes that no entry asked for. `bytes` is the payload's size,
    `bytesDone` how much of `bytes` has been written while publishing.
    """

    namespace: str
    storage_class: StorageClass
    key: Sha256
    state: HeldState
    bytes: Annotated[int, Field(ge=0)] = 0
    bytes_done: Annotated[int, Field(ge=0)] = 0
    manifest_sha256: _NO_KEY = ""
    wanted_id: str = ""
    reason: str = ""
    leases: Annotated[list[LeaseHolder], Field(max_length=100)] = Field(default_factory=list)
    lease_count: Annotated[int, Field(ge=0)] = 0


class RootStatus(Model):
    """One storage class on this node; sizes in bytes.

    `budgetBytes` is what all artifacts of the class may take together, `minFreeBytes` what the
    filesystem has to keep free; 0 means no such limit. `usedBytes` lies in the domains now,
    publications in progress included; `reservedBytes` is what those may still write.
    `evictableBytes` of what is used no entry refers to and nobody leases. `availableBytes` is what
    the next publication may take at most.
    """

    storage_class: StorageClass
    path: str
    filesystem: str
    capacity_bytes: Annotated[int, Field(ge=0)]
    free_bytes: Annotated[int, Field(ge=0)]
    budget_bytes: Annotated[int, Field(ge=0)] = 0
    min_free_bytes: Annotated[int, Field(ge=0)] = 0
    used_bytes: Annotated[int, Field(ge=0)] = 0
    reserved_bytes: Annotated[int, Field(ge=0)] = 0
    evictable_bytes: Annotated[int, Field(ge=0)] = 0
    available_bytes: Annotated[int, Field(ge=0)] = 0


class DomainStatus(Model):
    """One domain; `domainUuid` tells two nodes' stores apart.

    `usedBytes` and `reservedBytes` as in a root; `quotaBytes` is what the namespace may take in
    this class, 0 without a quota.
    """

    namespace: str
    storage_class: StorageClass
    domain_uuid: str
    used_bytes: Annotated[int, Field(ge=0)] = 0
    reserved_bytes: Annotated[int, Field(ge=0)] = 0
    quota_bytes: Annotated[int, Field(ge=0)] = 0


class CapacityLimit(StrEnum):
    """Which limit keeps an artifact out."""

    ARTIFACT = "Artifact"
    NAMESPACE_QUOTA = "NamespaceQuota"
    UNMANAGED_QUOTA = "UnmanagedQuota"
    NODE_BUDGET = "NodeBudget"
    FREE_SPACE = "FreeSpace"
    FREE_INODES = "FreeInodes"
    MEMORY = "Memory"


class BlockedArtifact(Model):
    """A wanted artifact that this node refused for want of room.

    It stays listed until it is here, no entry asks for it any more, or it would fit now; so its
    disappearance says that another attempt can help. `id` is the entry's; `reason` is
    InsufficientCapacity, `limit` the first that would be passed; `message` names what would free
    space.
    """

    id: str
    namespace: str
    storage_class: StorageClass
    key: _NO_KEY = ""
    reason: str
    limit: CapacityLimit
    needed_bytes: Annotated[int, Field(ge=0)]
    available_bytes: Annotated[int, Field(ge=0)]
    message: Annotated[str, Field(max_length=1024)] = ""


class WeightNodeStatus(Model):
    """Written by this node's agent alone."""

    observed_generation: Annotated[int, Field(ge=0)] = 0
    agent_version: str = ""
    reported_at: Timestamp | None = None
    roots: list[RootStatus] = Field(default_factory=list)
    domains: list[DomainStatus] = Field(default_factory=list)
    inventory: list[HeldArtifact] = Field(default_factory=list)
    blocked: list[BlockedArtifact] = Field(default_factory=list)
    ready: Annotated[str, Field(description="Artifacts ready / wanted.")] = "0/0"
    leases: Annotated[int, Field(ge=0)] = 0


class WeightNode(Resource):
    """One node's share of the fleet's weights."""

    kind: str = "WeightNode"
    spec: WeightNodeSpec = Field(default_factory=WeightNodeSpec)
    status: WeightNodeStatus = Field(default_factory=WeightNodeStatus)

    @classmethod
    def parse(cls, value: Any) -> WeightNode:
        """Read the API server's object.

        Raises:
            pydantic.ValidationError: an object that an older or newer schema admitted.

        """
        return cls.model_validate(value)
