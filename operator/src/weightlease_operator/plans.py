"""What one reconciliation decides: values that `applying` turns into calls, in this order.

entries → new Jobs → status → deleted Jobs → events → finalizer. An entry comes before its Job,
because an agent refuses a Job that no entry names; a Job that fixed a key goes after the status has
it; the finalizer goes last, when nothing is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto

from weightlease.api.weight_artifact import WeightArtifactStatus
from weightlease.api.weight_node import WantedArtifact
from weightlease.reasons import Reason
from weightlease_operator.observation import Sample


class FinalizerAction(Enum):
    """What becomes of our finalizer."""

    KEEP = auto()
    ADD = auto()
    REMOVE = auto()


@dataclass(frozen=True, slots=True)
class Start:
    """A Job to create; digests are empty for a canary, which fixes them."""

    name: str
    component: str
    node: str
    attempt: int
    content: str
    retry: str
    key: str = ""
    manifest_sha256: str = ""
    node_uid: str = ""


@dataclass(frozen=True, slots=True)
class PlannedEvent:
    """An event on the WeightArtifact."""

    reason: Reason
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """`entries` holds, for the nodes where they differ, all entries of this artifact.

    `status` is None when it is current. `wake_at` is when time alone changes the plan.
    """

    finalizer: FinalizerAction = FinalizerAction.KEEP
    entries: Mapping[str, tuple[WantedArtifact, ...]] = field(default_factory=dict)
    start: tuple[Start, ...] = ()
    delete: tuple[str, ...] = ()
    status: WeightArtifactStatus | None = None
    events: tuple[PlannedEvent, ...] = ()
    wake_at: datetime | None = None
    sample: Sample | None = None

    @property
    def writes(self) -> bool:
        """Whether applying it calls the API server at all."""
        changed = self.finalizer is not FinalizerAction.KEEP
        return changed or bool(self.entries or self.start or self.delete or self.status)
