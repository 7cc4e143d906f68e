"""Ways in which a model, a lease or a source breaks a final-layout contract.

Raised before anything was changed: the model may still be loaded canonically.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from weightlease.errors import Failure, FailureCode, Stage, WeightLeaseError


class Violation(StrEnum):
    """What is broken; in `failure.details["reason"]`."""

    SOURCE_CHANGED = "source_changed"
    MODEL_CONTRACT_UNSUPPORTED = "model_contract_unsupported"
    OWNERSHIP_AMBIGUOUS = "ownership_ambiguous"
    TENSOR_UNSUPPORTED = "tensor_unsupported"
    DTYPE_UNSUPPORTED = "dtype_unsupported"
    IDENTITY_INCOMPATIBLE = "identity_incompatible"
    TENSOR_CONTRACT_CHANGED = "tensor_contract_changed"
    MODEL_UNUSABLE = "model_unusable"
    LEASE_UNREADABLE = "lease_unreadable"


class ContractViolation(WeightLeaseError):
    """A contract that does not hold; nothing was mutated."""

    def __init__(self, reason: Violation, message: str, **details: Any) -> None:
        super().__init__(
            Failure(
                Stage.RESTORATION,
                FailureCode.RESTORE_PREFLIGHT_FAILED,
                retryable=False,
                message=message,
                details={**details, "reason": str(reason)},
            )
        )
        self.reason = reason
