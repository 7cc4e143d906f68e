"""A `HostWeightStore` that answers what a test tells it to, and counts what it was asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weightlease.errors import Failure, FailureCode, Stage
from weightlease.identity import WeightArtifactIdentity
from weightlease.policy import Validation
from weightlease.reports import CleanupResult, CleanupStatus, DomainInspection, StoreResult
from weightlease.store.protocol import WeightProducer


def failure(
    code: FailureCode, *, retryable: bool = False, stage: Stage = Stage.PRODUCTION
) -> Failure:
    return Failure(stage, code, retryable, f"a scripted {code}")


@dataclass
class ScriptedStore:
    """Answers of lookups and builds, in order; the last one repeats."""

    lookups: Sequence[StoreResult | Exception]
    builds: Sequence[StoreResult | Exception] = ()
    asked: list[str] = field(default_factory=list)
    timeouts: list[float | None] = field(default_factory=list)

    def lookup(
        self,
        identity: WeightArtifactIdentity,
        *,
        validation: Validation = Validation.MANIFEST_AND_METADATA,
        timeout: float | None = None,
    ) -> StoreResult:
        return self._answer("lookup", self.lookups, timeout)

    def get_or_build(
        self,
        producer: WeightProducer,
        *,
        validation: Validation = Validation.MANIFEST_AND_METADATA,
        timeout: float | None = None,
    ) -> StoreResult:
        return self._answer("build", self.builds, timeout)

    def inspect(self) -> DomainInspection:
        raise NotImplementedError

    def cleanup(self, key: str) -> CleanupResult:
        return CleanupResult(CleanupStatus.ABSENT)

    def _answer(
        self, what: str, script: Sequence[StoreResult | Exception], timeout: float | None
    ) -> StoreResult:
        number = self.asked.count(what)
        self.asked.append(what)
        self.timeouts.append(timeout)
        answer = script[min(number, len(script) - 1)]
        if isinstance(answer, Exception):
            raise answer
        return answer
