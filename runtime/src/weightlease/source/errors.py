"""How a source fails: one error, told apart by the reason that ends a producer."""

from __future__ import annotations

from typing import Any

from weightlease.errors import Failure, FailureCode, Stage, WeightLeaseError
from weightlease.reasons import EXIT_STATUS, Reason

_CODES = {
    Reason.REQUEST_INVALID: FailureCode.INVALID_CONFIG,
    Reason.CHECKSUM_MISMATCH: FailureCode.CHECKSUM_MISMATCH,
    Reason.IDENTITY_MISMATCH: FailureCode.IDENTITY_MISMATCH,
}


class SourceError(WeightLeaseError):
    """A source that cannot be read, is not what was asked for, or changed under its reader.

    `reason` is one of the producer's reasons; `failure.details["reason"]` repeats it, so that it
    survives a store that only passes failures on.
    """

    def __init__(self, reason: Reason, message: str, **details: Any) -> None:
        super().__init__(
            Failure(
                Stage.PRODUCTION,
                _CODES.get(reason, FailureCode.PRODUCER_FAILED),
                EXIT_STATUS[reason].retryable,
                message,
                {**details, "reason": str(reason)},
            )
        )
        self.reason = reason


def malformed(message: str, **details: Any) -> SourceError:
    """The source's content breaks a rule that no retry can mend."""
    return SourceError(Reason.SOURCE_MALFORMED, message, **details)
