"""What a resolution and a publication after the load say of themselves; plain, immutable values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from weightlease.errors import Failure, Stage


class Action(StrEnum):
    """What follows an attempt."""

    RETURN_LEASE = "return_lease"
    TRY_REMOTE = "try_remote"
    TRY_PRODUCER = "try_producer"
    QUARANTINE_THEN_PRODUCE = "quarantine_then_produce"
    CANONICAL_FALLBACK = "canonical_fallback"
    FAIL_STARTUP = "fail_startup"


class AttemptResult(StrEnum):
    """How an attempt ended."""

    HIT = "hit"
    MISS = "miss"
    SUCCESS = "success"
    TIMEOUT = "timeout"
    ERROR = "error"
    SKIPPED = "skipped"


class ResolutionOutcome(StrEnum):
    """How a resolution ended."""

    LOCAL_HIT = "local_hit"
    LOCAL_PRODUCTION = "local_production"
    CANONICAL_DIRECT = "canonical_direct"
    CANONICAL_FALLBACK = "canonical_fallback"
    FAILED = "failed"


class PublicationOutcome(StrEnum):
    """How a publication after the load ended."""

    PUBLISHED = "published"
    JOINED = "joined"
    ALREADY_PRESENT = "already_present"
    FAILED = "failed"
    RUNTIME_DISABLED = "runtime_disabled"
    POLICY_DISABLED = "policy_disabled"


@dataclass(frozen=True)
class Attempt:
    """One try of one backing; `failure` is there unless it hit, missed or succeeded."""

    stage: Stage
    result: AttemptResult
    action: Action
    elapsed_seconds: float
    failure: Failure | None = None


@dataclass(frozen=True)
class ResolutionReport:
    """Exactly one per resolution; `key` is empty where no identity was computed."""

    resolution_id: str
    outcome: ResolutionOutcome
    attempts: tuple[Attempt, ...]
    elapsed_seconds: float
    key: str = ""

    @property
    def failure(self) -> Failure | None:
        """Why there is no lease; the last attempt's failure."""
        return self.attempts[-1].failure if self.attempts else None


@dataclass(frozen=True)
class PublicationReport:
    """One per `publish_after_load`; it cannot revise a resolution. `failure` exactly on FAILED."""

    operation_id: str
    outcome: PublicationOutcome
    elapsed_seconds: float
    key: str = ""
    failure: Failure | None = None

    def __post_init__(self) -> None:
        if (self.failure is not None) != (self.outcome is PublicationOutcome.FAILED):
            raise ValueError(f"a publication {self.outcome} has the wrong failure ownership")
