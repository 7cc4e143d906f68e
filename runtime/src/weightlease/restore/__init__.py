"""Final layouts: what a model owns, and how a leased artifact becomes its weights. Needs torch."""

from weightlease.restore.context import FinalLayoutArtifactSpec, FinalLayoutContext
from weightlease.restore.contract import FinalLayoutModelContract
from weightlease.restore.request import FinalLayoutRequest, LoaderIdentity
from weightlease.restore.restorer import FinalLayoutTensorRestorer, RestorePlan
from weightlease.restore.violation import ContractViolation, Violation

__all__ = [
    "ContractViolation",
    "FinalLayoutArtifactSpec",
    "FinalLayoutContext",
    "FinalLayoutModelContract",
    "FinalLayoutRequest",
    "FinalLayoutTensorRestorer",
    "LoaderIdentity",
    "RestorePlan",
    "Violation",
]
