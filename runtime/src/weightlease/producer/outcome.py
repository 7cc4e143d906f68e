"""From what went wrong to the reason that ends the process."""

from __future__ import annotations

from weightlease.errors import Failure, FailureCode, Stage, WeightLeaseError
from weightlease.reasons import EXIT_STATUS, Reason, TerminationMessage
from weightlease.source.errors import SourceError


class Interrupted(BaseException):
    """SIGTERM; not an Exception, so that nothing on the way takes it for a fault of its own."""


# What the agent or the store says, as a producer's reason.
_BY_CODE = {
    FailureCode.ACTIVE_BUILD_TIMEOUT: Reason.AGENT_UNAVAILABLE,
    FailureCode.ARTIFACT_TOO_LARGE: Reason.AGENT_REFUSED,
    FailureCode.CHECKSUM_MISMATCH: Reason.CHECKSUM_MISMATCH,
    FailureCode.CONTENT_MISMATCH: Reason.CONTENT_MISMATCH,
    FailureCode.DOMAIN_UNAVAILABLE: Reason.AGENT_UNAVAILABLE,
    FailureCode.ENOSPC: Reason.INSUFFICIENT_CAPACITY,
    FailureCode.IDENTITY_COLLISION: Reason.CONTENT_MISMATCH,
    FailureCode.IDENTITY_MISMATCH: Reason.IDENTITY_MISMATCH,
    FailureCode.INSUFFICIENT_CAPACITY: Reason.INSUFFICIENT_CAPACITY,
    FailureCode.INVALID_CONFIG: Reason.REQUEST_INVALID,
    FailureCode.MANIFEST_CORRUPT: Reason.SOURCE_MALFORMED,
    FailureCode.PERMISSION_DENIED: Reason.AGENT_REFUSED,
    FailureCode.PRODUCER_FAILED: Reason.PRODUCER_CRASHED,
    FailureCode.PRODUCER_UNAVAILABLE: Reason.AGENT_UNAVAILABLE,
    FailureCode.PROTOCOL_ERROR: Reason.AGENT_REFUSED,
    FailureCode.STORE_LIMIT_EXCEEDED: Reason.INSUFFICIENT_CAPACITY,
    FailureCode.TOO_MANY_REQUESTS: Reason.AGENT_UNAVAILABLE,
    FailureCode.UNAUTHENTICATED: Reason.AGENT_REFUSED,
    FailureCode.UNSUPPORTED: Reason.AGENT_REFUSED,
}
# Waiting can help: the agent starts, restarts, or has not yet read what it is asked to allow.
WORTH_WAITING = frozenset(
    {
        FailureCode.DOMAIN_UNAVAILABLE,
        FailureCode.PRODUCER_UNAVAILABLE,
        FailureCode.TOO_MANY_REQUESTS,
    }
)


def reason_of(failure: Failure) -> Reason:
    """The reason behind a store's or an agent's failure."""
    if failure.stage is Stage.CAPACITY and failure.retryable:
        return Reason.INSUFFICIENT_CAPACITY
    reason = _BY_CODE.get(failure.code, Reason.PUBLICATION_FAILED)
    if failure.retryable and not EXIT_STATUS[reason].retryable:
        # The node says that a new attempt may pass: the Job must not be stopped for good.
        return Reason.AGENT_UNAVAILABLE
    return reason


def ending(error: BaseException) -> TerminationMessage:
    """What to say of `error`; an unforeseen one is a crash, told by its type."""
    if isinstance(error, Interrupted):
        return _message(Reason.INTERRUPTED, "stopped by SIGTERM before the artifact was published")
    if isinstance(error, SourceError):
        return _message(error.reason, error.failure.message)
    if isinstance(error, WeightLeaseError):
        return _message(reason_of(error.failure), str(error.failure))
    return _message(Reason.PRODUCER_CRASHED, f"{type(error).__name__}: {error}")


def _message(reason: Reason, message: str) -> TerminationMessage:
    return TerminationMessage(reason, message, EXIT_STATUS[reason].retryable)
