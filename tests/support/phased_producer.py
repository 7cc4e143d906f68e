"""The sample producer with a phase and a scope, as a `HostWeightRuntime` takes it."""

from __future__ import annotations

from dataclasses import dataclass

from sample_producer import SampleProducer
from weightlease.store.protocol import CoordinationScope, LookupPhase


@dataclass(frozen=True)
class PhasedSample(SampleProducer):
    """A `PhasedProducer` of the sample artifact."""

    lookup_phase: LookupPhase = LookupPhase.PRE_LOAD_SAFE
    coordination: CoordinationScope = CoordinationScope.SINGLE_PROCESS


def post_load() -> PhasedSample:
    return PhasedSample(lookup_phase=LookupPhase.POST_LOAD_ONLY)
