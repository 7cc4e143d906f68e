"""`HostWeightRuntime`: resolves one exact identity by policy, and publishes after a load.

It neither builds a model nor calls the canonical loader, and infers nothing from process groups:
identity and producer are the loader's, handed over as callables so that a mode that needs neither
touches neither. Each `resolve` and each `publish_after_load` has the whole coordination budget of
the policy, which bounds lock acquisition and never cancels work that has begun.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable

from weightlease.errors import Failure, FailureCode, Stage, WeightLeaseError
from weightlease.identity import WeightArtifactIdentity
from weightlease.lease import WeightLease
from weightlease.reports import StoreResult, StoreStatus
from weightlease.runtime import decisions, refusals
from weightlease.runtime.policy import RuntimeMode, RuntimePolicy
from weightlease.runtime.report import (
    Action,
    AttemptResult,
    PublicationOutcome,
    PublicationReport,
    ResolutionReport,
)
from weightlease.runtime.resolution import Resolution
from weightlease.runtime.trail import Trail
from weightlease.store.protocol import (
    CoordinationScope,
    HostWeightStore,
    LookupPhase,
    PhasedProducer,
)

Observer = Callable[[ResolutionReport | PublicationReport], None]
Identify = Callable[[], WeightArtifactIdentity]
MakeProducer = Callable[[], PhasedProducer]

_logger = logging.getLogger(__name__)
_PUBLISHED = {
    StoreStatus.BUILT: PublicationOutcome.PUBLISHED,
    StoreStatus.JOINED: PublicationOutcome.JOINED,
    StoreStatus.HIT: PublicationOutcome.ALREADY_PRESENT,
}


def _unobserved(report: ResolutionReport | PublicationReport) -> None:
    """Nobody listens."""


class HostWeightRuntime:
    """One store under one policy; a store that could not be opened stays so for this runtime."""

    def __init__(
        self,
        open_store: Callable[[], HostWeightStore],
        policy: RuntimePolicy,
        *,
        observe: Observer = _unobserved,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the store, unless the mode is disabled; a typed failure is kept, not raised."""
        self.policy = policy
        self._observe = observe
        self._clock = clock
        self._store: HostWeightStore | None = None
        self._opening: Failure | None = None
        if policy.mode is RuntimeMode.DISABLED:
            return
        try:
            self._store = open_store()
        except WeightLeaseError as error:
            self._opening = error.failure

    # ---- before the load ----

    def resolve(self, identity: Identify, producer: MakeProducer | None = None) -> Resolution:
        """Find or build exactly `identity()`, or say typed why the loader must go on without.

        `producer()` is called after a miss alone, and must make that very identity.
        """
        trail = Trail(self._clock)
        lease = None
        if self.policy.mode is not RuntimeMode.DISABLED:
            lease = self._acquire(trail, identity, producer)
        report = trail.report()
        self._tell(report)
        return Resolution(report, lease)

    def _acquire(
        self, trail: Trail, identity: Identify, make: MakeProducer | None
    ) -> WeightLease | None:
        store = self._store
        if store is None:
            self._end(trail, self._opening or refusals.NO_STORE)
            return None
        wanted = _identified(identity)
        if isinstance(wanted, Failure):
            # a source, credential or setting that is wrong for the loader too: never forgiven
            trail.note(wanted.stage, AttemptResult.ERROR, Action.FAIL_STARTUP, wanted)
            return None
        trail.key = wanted.key
        found = _asked(
            lambda: store.lookup(
                wanted,
                validation=self.policy.validation,
                timeout=self._left(trail.elapsed_seconds),
            )
        )
        offered = make if self.policy.allow_local_build else None
        action = decisions.after_lookup(
            self.policy, found.status, found.failure, can_build=offered is not None
        )
        trail.note(Stage.LOOKUP, decisions.RESULTS[found.status], action, found.failure)
        if found.status not in decisions.ABSENT:
            return found.lease
        if action is Action.TRY_REMOTE:
            self._end(trail, refusals.NO_REMOTE, AttemptResult.SKIPPED)
            return None
        if offered is None:
            self._end(trail, refusals.NO_PRODUCER, AttemptResult.SKIPPED)
            return None
        return self._build(trail, store, wanted, offered)

    def _build(
        self,
        trail: Trail,
        store: HostWeightStore,
        wanted: WeightArtifactIdentity,
        make: MakeProducer,
    ) -> WeightLease | None:
        producer = _producer_for(wanted, make)
        if isinstance(producer, Failure):
            trail.note(producer.stage, AttemptResult.ERROR, Action.FAIL_STARTUP, producer)
            return None
        if producer.lookup_phase is not LookupPhase.PRE_LOAD_SAFE:
            self._end(trail, refusals.NO_PRODUCER, AttemptResult.SKIPPED)
            return None
        built = _asked(
            lambda: store.get_or_build(
                producer,
                validation=self.policy.validation,
                timeout=self._left(trail.elapsed_seconds),
            )
        )
        action = decisions.after_build(self.policy.mode, built.status, built.failure)
        failure = built.failure
        if built.lease is None and failure is None:
            failure = refusals.VANISHED
        trail.note(Stage.PRODUCTION, decisions.RESULTS[built.status], action, failure)
        return built.lease

    # ---- after the load ----

    def publish_after_load(self, identity: Identify, producer: MakeProducer) -> PublicationReport:
        """Publish what a finished model holds, for later starts; the model itself stays as it is.

        Synchronous. Takes POST_LOAD_ONLY producers; the lease of the publication is closed here.
        """
        started = self._clock()
        failed = PublicationOutcome.FAILED
        key, failure = "", None
        if self.policy.mode is RuntimeMode.DISABLED:
            outcome = PublicationOutcome.RUNTIME_DISABLED
        elif not self.policy.allow_post_load_publish:
            outcome = PublicationOutcome.POLICY_DISABLED
        elif self._store is None:
            outcome, failure = failed, self._opening or refusals.NO_STORE
        else:
            wanted = _identified(identity)
            if isinstance(wanted, Failure):
                outcome, failure = failed, wanted
            else:
                key = wanted.key
                ended = self._publish(self._store, wanted, producer)
                failure = ended if isinstance(ended, Failure) else None
                outcome = failed if isinstance(ended, Failure) else ended
        report = PublicationReport(uuid.uuid4().hex, outcome, self._clock() - started, key, failure)
        self._tell(report)
        return report

    def _publish(
        self, store: HostWeightStore, wanted: WeightArtifactIdentity, make: MakeProducer
    ) -> PublicationOutcome | Failure:
        producer = _producer_for(wanted, make)
        if isinstance(producer, Failure):
            return producer
        if producer.lookup_phase is not LookupPhase.POST_LOAD_ONLY:
            return refusals.NOT_POST_LOAD
        built = _asked(
            lambda: store.get_or_build(
                producer, validation=self.policy.validation, timeout=self._left(0.0)
            )
        )
        if built.lease is None:
            return built.failure or refusals.VANISHED
        try:
            built.lease.close()
        except Exception as error:  # noqa: BLE001 - the artifact is published; the report says more
            return _lease_not_closed(error)
        return _PUBLISHED[built.status]

    # ---- inside ----

    def _left(self, elapsed: float) -> float:
        return max(0.0, self.policy.wait.coordination_timeout_seconds - elapsed)

    def _end(
        self, trail: Trail, failure: Failure, result: AttemptResult = AttemptResult.ERROR
    ) -> None:
        if failure.code is FailureCode.ACTIVE_BUILD_TIMEOUT:
            result = AttemptResult.TIMEOUT
        action = decisions.after_failure(self.policy.mode, failure)
        trail.note(failure.stage, result, action, failure)

    def _tell(self, report: ResolutionReport | PublicationReport) -> None:
        try:
            self._observe(report)
        except Exception:
            _logger.exception("the observer of a weight runtime failed; the outcome stands")


def _identified(identify: Identify) -> WeightArtifactIdentity | Failure:
    """The identity, or why the canonical source or the configuration gives none."""
    try:
        return identify()
    except WeightLeaseError as error:
        return error.failure
    except Exception as error:  # noqa: BLE001 - the loader's own code: typed, visible, one report
        return Failure(
            Stage.CANONICAL_LOADING,
            FailureCode.CANONICAL_SOURCE_FAILED,
            retryable=False,
            message=f"the identity could not be computed: {type(error).__name__}: {error}",
        )


def _producer_for(wanted: WeightArtifactIdentity, make: MakeProducer) -> PhasedProducer | Failure:
    try:
        producer = make()
    except WeightLeaseError as error:
        return error.failure
    except Exception as error:  # noqa: BLE001 - as above
        return Failure(
            Stage.PRODUCTION,
            FailureCode.PRODUCER_FAILED,
            retryable=False,
            message=f"the producer could not be made: {type(error).__name__}: {error}",
        )
    if producer.coordination is not CoordinationScope.SINGLE_PROCESS:
        return refusals.NOT_ONE_PROCESS
    if producer.identity.canonical_bytes != wanted.canonical_bytes:
        return refusals.OTHER_IDENTITY
    return producer


def _asked(operation: Callable[[], StoreResult]) -> StoreResult:
    """A store answers with values; one that raises is broken, and that stays visible."""
    try:
        return operation()
    except WeightLeaseError as error:
        return StoreResult(StoreStatus.FAILED, failure=error.failure)
    except Exception as error:  # noqa: BLE001 - one report per resolution, whatever the store does
        failure = Failure(
            Stage.DOMAIN,
            FailureCode.DOMAIN_UNAVAILABLE,
            retryable=False,
            message=f"the store failed: {type(error).__name__}: {error}",
        )
        return StoreResult(StoreStatus.FAILED, failure=failure)


def _lease_not_closed(error: Exception) -> Failure:
    return Failure(
        Stage.LIFECYCLE,
        FailureCode.PUBLICATION_FAILED,
        retryable=False,
        message=f"the artifact is published, but its lease did not close: {error}",
        details={"exception": type(error).__name__},
    )
