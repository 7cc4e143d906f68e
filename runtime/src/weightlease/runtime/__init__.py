"""`HostWeightRuntime`: one exact representation, resolved by policy over any `HostWeightStore`.

runtime = HostWeightRuntime(lambda: LocalStore(root), RuntimePolicy(RuntimeMode.PREFERRED))
with runtime.resolve(identity, producer) as resolution:
    if resolution.report.outcome is ResolutionOutcome.CANONICAL_FALLBACK: ...
"""

from weightlease.runtime.host_runtime import HostWeightRuntime
from weightlease.runtime.policy import RemoteOnMiss, RuntimeMode, RuntimePolicy
from weightlease.runtime.report import (
    Action,
    Attempt,
    AttemptResult,
    PublicationOutcome,
    PublicationReport,
    ResolutionOutcome,
    ResolutionReport,
)
from weightlease.runtime.resolution import Resolution

__all__ = [
    "Action",
    "Attempt",
    "AttemptResult",
    "HostWeightRuntime",
    "PublicationOutcome",
    "PublicationReport",
    "RemoteOnMiss",
    "Resolution",
    "ResolutionOutcome",
    "ResolutionReport",
    "RuntimeMode",
    "RuntimePolicy",
]
