"""Outcomes as values; combinations that make no sense cannot be built."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from weightlease.errors import Failure

if TYPE_CHECKING:
    from weightlease.lease import WeightLease


class StoreStatus(StrEnum):
    """How a lookup or a build ended."""

    HIT = "hit"
    MISS = "miss"
    BUILT = "built"
    JOINED = "joined"
    INVALID = "invalid"
    TIMEOUT = "timeout"
    FAILED = "failed"


_WITH_LEASE = {StoreStatus.HIT, StoreStatus.BUILT, StoreStatus.JOINED}
_WITH_FAILURE = {StoreStatus.INVALID, StoreStatus.TIMEOUT, StoreStatus.FAILED}


@dataclass(frozen=True)
class StoreResult:
    """One store operation: a lease exactly on success, a failure exactly on an error."""

    status: StoreStatus
    lease: WeightLease | None = None
    failure: Failure | None = None

    def __post_init__(self) -> None:
        if (self.lease is not None) != (self.status in _WITH_LEASE):
            raise ValueError(f"a store result {self.status} has the wrong lease ownership")
        if (self.failure is not None) != (self.status in _WITH_FAILURE):
            raise ValueError(f"a store result {self.status} has the wrong failure ownership")


class InventoryState(StrEnum):
    """What one entry of a domain is."""

    READY = "ready"
    DENIED = "denied"
    QUARANTINED = "quarantined"
    TEMPORARY = "temporary"


@dataclass(frozen=True)
class InventoryEntry:
    """One artifact, quarantined artifact or staging directory; `size_bytes` on disk."""

    artifact_key: str
    state: InventoryState
    storage_name: str
    size_bytes: int
    reason: str = ""


@dataclass(frozen=True)
class DomainInspection:
    """A domain at one instant; sizes in bytes."""

    domain_uuid: str
    scope: str
    domain_id: str
    storage_class: str
    filesystem_type: str
    store_bytes: int
    filesystem_free_bytes: int
    inventory: tuple[InventoryEntry, ...]


@dataclass(frozen=True)
class QuarantinedArtifact:
    """One entry of quarantine; `storage_name` removes it, its age counts from the move."""

    storage_name: str
    artifact_key: str
    reason: str
    size_bytes: int
    age_seconds: float


class CleanupStatus(StrEnum):
    """How a non-blocking cleanup ended."""

    REMOVED = "removed"
    ABSENT = "absent"
    ACTIVE_BUILD = "active_build"
    ACTIVE_LEASE = "active_lease"
    FAILED = "failed"


@dataclass(frozen=True)
class CleanupResult:
    """`holders` names the leases in the way where a lease file tells, `failure` what broke."""

    status: CleanupStatus
    freed_bytes: int = 0
    holders: tuple[str, ...] = ()
    failure: Failure | None = None
