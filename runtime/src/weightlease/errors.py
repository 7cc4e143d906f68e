"""Typed failures: the one error tree that the store, the wire and the client share.

    WeightLeaseError                 carries a Failure; everything below is one of these
    ├── IdentityError                an identity that is not exact, deterministic JSON
    ├── ManifestError                manifest.json or READY.json that breaks its schema
    ├── SafetensorsFormatError       a safetensors file that lies about itself
    ├── ProtocolError                bytes on the socket that are not our protocol
    └── LiveViewsError               a strict close while tensors still look at the lease

A failure is a value {stage, code, retryable, message, details}. Stages and the first block of
codes are those of the Host Weight Runtime, so that its consumers can switch on them unchanged;
the second block is ours. Expected outcomes (a miss, a timeout) travel as values in
`weightlease.reports`; exceptions are for what a caller did not ask for.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class Stage(StrEnum):
    """Where in a resolution something failed."""

    CONFIGURATION = "configuration"
    DOMAIN = "domain"
    LOOKUP = "lookup"
    VALIDATION = "validation"
    REMOTE = "remote"
    PRODUCTION = "production"
    CAPACITY = "capacity"
    RESTORATION = "restoration"
    LIFECYCLE = "lifecycle"
    CANONICAL_LOADING = "canonical_loading"
    ACCESS = "access"


class FailureCode(StrEnum):
    """What failed; the caller decides by this, never by the message."""

    # Host Weight Runtime
    DOMAIN_POLICY_MISMATCH = "domain_policy_mismatch"
    DOMAIN_UNAVAILABLE = "domain_unavailable"
    STORAGE_CLASS_MISMATCH = "storage_class_mismatch"
    LOCAL_MISS = "local_miss"
    ARTIFACT_DENIED = "artifact_denied"
    ACTIVE_BUILD_TIMEOUT = "active_build_timeout"
    MANIFEST_INCOMPATIBLE = "manifest_incompatible"
    MANIFEST_CORRUPT = "manifest_corrupt"
    CHECKSUM_MISMATCH = "checksum_mismatch"
    IDENTITY_COLLISION = "identity_collision"
    PRODUCER_UNAVAILABLE = "producer_unavailable"
    PRODUCER_UNSUPPORTED = "producer_unsupported"
    PRODUCER_FAILED = "producer_failed"
    ARTIFACT_TOO_LARGE = "artifact_too_large"
    STORE_LIMIT_EXCEEDED = "store_limit_exceeded"
    INSUFFICIENT_CAPACITY = "insufficient_capacity"
    ENOSPC = "enospc"
    ACTIVE_LEASE = "active_lease"
    PUBLICATION_FAILED = "publication_failed"
    QUARANTINE_FAILED = "quarantine_failed"
    INVALID_CONFIG = "invalid_config"
    UNSUPPORTED = "unsupported"
    CANONICAL_SOURCE_FAILED = "canonical_source_failed"
    RESTORE_PREFLIGHT_FAILED = "restore_preflight_failed"
    RESTORE_COMMIT_FAILED = "restore_commit_failed"
    # weightlease
    IDENTITY_MISMATCH = "identity_mismatch"
    CONTENT_MISMATCH = "content_mismatch"
    UNAUTHENTICATED = "unauthenticated"
    PERMISSION_DENIED = "permission_denied"
    PROTOCOL_ERROR = "protocol_error"
    TOO_MANY_REQUESTS = "too_many_requests"


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One typed failure, as it appears in results, replies, reports and logs."""

    stage: Stage
    code: FailureCode
    retryable: bool
    message: str
    details: dict[str, Any] = {}

    def __str__(self) -> str:
        return f"{self.code} ({self.stage}): {self.message}"


class WeightLeaseError(Exception):
    """Base of every error raised on purpose; `failure` says what, and whether to retry."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure

    @classmethod
    def of(
        cls,
        stage: Stage,
        code: FailureCode,
        message: str,
        *,
        retryable: bool = False,
        **details: Any,
    ) -> WeightLeaseError:
        """Build the error and its failure in one go."""
        return cls(Failure(stage, code, retryable, message, details))


class _FixedFailureError(WeightLeaseError):
    """An error whose stage and code follow from its class."""

    stage = Stage.VALIDATION
    code = FailureCode.MANIFEST_CORRUPT

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(
            Failure(self.stage, self.code, retryable=False, message=message, details=details)
        )


class IdentityError(_FixedFailureError):
    """An identity with a missing, foreign or non-deterministic value."""

    stage = Stage.CONFIGURATION
    code = FailureCode.INVALID_CONFIG


class ManifestError(_FixedFailureError):
    """A manifest or READY marker that breaks its schema."""


class SafetensorsFormatError(_FixedFailureError):
    """A safetensors file that breaks its format; `reason` is the stable name of the way it does."""

    def __init__(self, reason: str, message: str, **details: Any) -> None:
        super().__init__(message, reason=reason, **details)
        self.reason = reason


class ProtocolError(_FixedFailureError):
    """A frame that is not our protocol: the connection is dropped."""

    stage = Stage.ACCESS
    code = FailureCode.PROTOCOL_ERROR


class LiveViewsError(_FixedFailureError):
    """`close(strict=True)` while views live; `names` are the tensors that still do."""

    stage = Stage.LIFECYCLE
    code = FailureCode.ACTIVE_LEASE

    def __init__(self, names: tuple[str, ...]) -> None:
        shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        super().__init__(
            f"{len(names)} views of the lease live: {shown}; drop them before a strict close",
            names=list(names),
        )
        self.names = names


def production_failure(message: str) -> WeightLeaseError:
    """The failure of a producer that broke its contract."""
    return WeightLeaseError.of(Stage.PRODUCTION, FailureCode.PRODUCER_FAILED, message)
