"""What a store is allowed to do: frozen settings, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.names import StorageClass


class Validation(StrEnum):
    """How much of an artifact a lookup checks before it leases it."""

    MANIFEST_AND_METADATA = "manifest_and_metadata"
    FULL_CHECKSUM = "full_checksum"


class BuildAdmission(StrEnum):
    """Whether builders of different artifacts may fill one store at once.

    Serialized, each sees the store as the one before it left it, so that builders that would fit
    one after the other do not all pass a check that only one of them can keep.
    """

    CONCURRENT = "concurrent"
    SERIALIZED = "serialized"


@dataclass(frozen=True)
class CapacityPolicy:
    """Limits in bytes; None means no limit. HWR freezes them with the domain."""

    max_artifact_bytes: int | None = None
    max_store_bytes: int | None = None
    min_free_bytes: int = 0
    build_admission: BuildAdmission = BuildAdmission.CONCURRENT

    def __post_init__(self) -> None:
        for name in ("max_artifact_bytes", "max_store_bytes"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise _invalid(f"{name} {value} must be positive or absent")
        if self.min_free_bytes < 0:
            raise _invalid(f"min_free_bytes {self.min_free_bytes} must not be negative")
        if self.build_admission is BuildAdmission.SERIALIZED and self.max_store_bytes is None:
            raise _invalid("build_admission 'serialized' needs max_store_bytes to hold it to")


@dataclass(frozen=True)
class DomainPolicy:
    """One store root; `domain_id` names the node (or NUMA node) it belongs to."""

    storage_class: StorageClass = StorageClass.DISK
    scope: str = "node"
    domain_id: str = "node"
    capacity: CapacityPolicy = field(default_factory=CapacityPolicy)
    require_trusted_permissions: bool = True

    def __post_init__(self) -> None:
        if self.scope != "node":
            raise _invalid(f"scope {self.scope!r} is not supported; use 'node'")
        if not self.domain_id:
            raise _invalid("domain_id must not be empty")


@dataclass(frozen=True)
class WaitPolicy:
    """How long lock acquisition may take, in seconds; it never cancels work that has begun."""

    coordination_timeout_seconds: float = 600.0

    def __post_init__(self) -> None:
        if not 0 < self.coordination_timeout_seconds < float("inf"):
            raise _invalid(
                f"coordination_timeout_seconds {self.coordination_timeout_seconds} "
                "must be finite and positive"
            )


def _invalid(message: str) -> WeightLeaseError:
    return WeightLeaseError.of(Stage.CONFIGURATION, FailureCode.INVALID_CONFIG, message)
