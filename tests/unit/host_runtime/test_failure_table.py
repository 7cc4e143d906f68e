"""Each row of the Host Weight Runtime's failure table, in both enabled modes."""

from __future__ import annotations

import pytest

from phased_producer import PhasedSample
from sample_producer import fine_tune
from scripted_store import ScriptedStore, failure
from weightlease.errors import Failure, FailureCode, Stage
from weightlease.reports import StoreResult, StoreStatus
from weightlease.runtime import (
    Action,
    HostWeightRuntime,
    RemoteOnMiss,
    ResolutionOutcome,
    RuntimeMode,
    RuntimePolicy,
)
from weightlease.runtime.decisions import RestoreFallback, after_restore_failure
from weightlease.store.protocol import CoordinationScope, LookupPhase

PREFERRED, REQUIRED = RuntimeMode.PREFERRED, RuntimeMode.REQUIRED
FALLBACK, FAILED = ResolutionOutcome.CANONICAL_FALLBACK, ResolutionOutcome.FAILED
MISS = StoreResult(StoreStatus.MISS)
RETRYABLE = [
    FailureCode.DOMAIN_UNAVAILABLE,
    FailureCode.ARTIFACT_TOO_LARGE,
    FailureCode.STORE_LIMIT_EXCEEDED,
    FailureCode.INSUFFICIENT_CAPACITY,
    FailureCode.ENOSPC,
]


def failed(code: FailureCode, *, retryable: bool = False) -> StoreResult:
    return StoreResult(StoreStatus.FAILED, failure=failure(code, retryable=retryable))


def outcome(
    store: ScriptedStore,
    mode: RuntimeMode,
    producer: PhasedSample | None = None,
    remote: RemoteOnMiss = RemoteOnMiss.DISABLED,
) -> ResolutionOutcome:
    runtime = HostWeightRuntime(lambda: store, RuntimePolicy(mode, remote=remote))
    make = None if producer is None else lambda: producer
    return runtime.resolve(lambda: fine_tune(0), make).report.outcome


@pytest.mark.parametrize(("mode", "expected"), [(PREFERRED, FALLBACK), (REQUIRED, FAILED)])
def test_a_local_miss_falls_back_where_preferred_and_fails_where_required(
    mode: RuntimeMode, expected: ResolutionOutcome
) -> None:
    assert outcome(ScriptedStore([MISS]), mode) is expected


@pytest.mark.parametrize("code", [FailureCode.ARTIFACT_DENIED, FailureCode.CHECKSUM_MISMATCH])
@pytest.mark.parametrize(("mode", "expected"), [(PREFERRED, FALLBACK), (REQUIRED, FAILED)])
def test_an_invalid_artifact_without_a_producer_falls_back_where_preferred(
    code: FailureCode, mode: RuntimeMode, expected: ResolutionOutcome
) -> None:
    invalid = StoreResult(StoreStatus.INVALID, failure=failure(code))
    assert outcome(ScriptedStore([invalid]), mode) is expected


@pytest.mark.parametrize("code", RETRYABLE)
@pytest.mark.parametrize(("mode", "expected"), [(PREFERRED, FALLBACK), (REQUIRED, FAILED)])
def test_a_retryable_store_failure_falls_back_where_preferred(
    code: FailureCode, mode: RuntimeMode, expected: ResolutionOutcome
) -> None:
    unwell = failed(code, retryable=True)
    assert outcome(ScriptedStore([unwell]), mode) is expected
    assert outcome(ScriptedStore([MISS], [unwell]), mode, PhasedSample()) is expected


@pytest.mark.parametrize(("mode", "expected"), [(PREFERRED, FALLBACK), (REQUIRED, FAILED)])
def test_a_lock_that_is_not_free_in_time_falls_back_where_preferred(
    mode: RuntimeMode, expected: ResolutionOutcome
) -> None:
    late = failure(FailureCode.ACTIVE_BUILD_TIMEOUT, retryable=True, stage=Stage.LOOKUP)
    timeout = StoreResult(StoreStatus.TIMEOUT, failure=late)
    assert outcome(ScriptedStore([timeout]), mode) is expected


@pytest.mark.parametrize("mode", [PREFERRED, REQUIRED])
def test_an_unsupported_producer_fails_in_every_mode(mode: RuntimeMode) -> None:
    cohort = PhasedSample(coordination=CoordinationScope.GROUP_COHORT)
    store = ScriptedStore([MISS])
    assert outcome(store, mode, cohort) is FAILED
    assert store.asked == ["lookup"]


@pytest.mark.parametrize("mode", [PREFERRED, REQUIRED])
@pytest.mark.parametrize("remote", [RemoteOnMiss.TRY, RemoteOnMiss.REQUIRE])
def test_an_unsupported_backing_fails_in_every_mode_after_a_local_miss(
    mode: RuntimeMode, remote: RemoteOnMiss
) -> None:
    store = ScriptedStore([MISS])
    assert outcome(store, mode, PhasedSample(), remote) is FAILED
    assert store.asked == ["lookup"]


@pytest.mark.parametrize("mode", [PREFERRED, REQUIRED])
def test_an_identity_collision_fails_in_every_mode(mode: RuntimeMode) -> None:
    collided = failed(FailureCode.IDENTITY_COLLISION)
    assert outcome(ScriptedStore([MISS], [collided]), mode, PhasedSample()) is FAILED


@pytest.mark.parametrize("mode", [PREFERRED, REQUIRED])
@pytest.mark.parametrize("code", [FailureCode.PRODUCER_FAILED, FailureCode.PUBLICATION_FAILED])
@pytest.mark.parametrize("retryable", [True, False])
def test_a_producer_or_publication_failure_fails_in_every_mode_whatever_it_says_of_itself(
    mode: RuntimeMode, code: FailureCode, retryable: bool
) -> None:
    broken = failed(code, retryable=retryable)
    assert outcome(ScriptedStore([MISS], [broken]), mode, PhasedSample()) is FAILED


@pytest.mark.parametrize("mode", [PREFERRED, REQUIRED])
@pytest.mark.parametrize(
    "code",
    [
        FailureCode.DOMAIN_POLICY_MISMATCH,
        FailureCode.UNAUTHENTICATED,
        FailureCode.PERMISSION_DENIED,
        FailureCode.UNSUPPORTED,
    ],
)
def test_configuration_and_authentication_failures_are_no_miss(
    mode: RuntimeMode, code: FailureCode
) -> None:
    assert outcome(ScriptedStore([failed(code)]), mode) is FAILED
    assert outcome(ScriptedStore([failed(code, retryable=True)]), mode) is FAILED


@pytest.mark.parametrize("mode", [PREFERRED, REQUIRED])
def test_a_producer_of_another_identity_fails_in_every_mode(mode: RuntimeMode) -> None:
    store = ScriptedStore([MISS])
    assert outcome(store, mode, PhasedSample(identity=fine_tune(1))) is FAILED
    assert store.asked == ["lookup"]


def test_a_lookup_that_failed_never_tries_a_producer() -> None:
    store = ScriptedStore([failed(FailureCode.DOMAIN_UNAVAILABLE, retryable=True)])
    assert outcome(store, PREFERRED, PhasedSample()) is FALLBACK
    assert store.asked == ["lookup"]


def test_a_policy_without_local_builds_never_asks_for_the_producer() -> None:
    def never() -> PhasedSample:
        raise AssertionError("asked for a producer")

    store = ScriptedStore([MISS])
    policy = RuntimePolicy(PREFERRED, allow_local_build=False)
    runtime = HostWeightRuntime(lambda: store, policy)
    report = runtime.resolve(lambda: fine_tune(0), never).report
    assert report.outcome is FALLBACK
    assert [attempt.action for attempt in report.attempts] == [Action.CANONICAL_FALLBACK] * 2


def test_an_artifact_that_vanishes_after_its_build_is_a_miss_again() -> None:
    store = ScriptedStore([MISS], [MISS])
    assert outcome(store, PREFERRED, PhasedSample()) is FALLBACK
    assert outcome(store, REQUIRED, PhasedSample()) is FAILED


def test_a_store_that_raises_is_broken_and_not_a_miss() -> None:
    assert outcome(ScriptedStore([OSError("surprise")]), PREFERRED) is FAILED


@pytest.mark.parametrize(
    ("code", "preferred"),
    [
        (FailureCode.RESTORE_PREFLIGHT_FAILED, RestoreFallback.SAME_MODEL),
        (FailureCode.RESTORE_COMMIT_FAILED, RestoreFallback.FRESH_MODEL),
        (FailureCode.MANIFEST_CORRUPT, RestoreFallback.FAIL_STARTUP),
    ],
)
def test_a_failed_restore_may_reuse_only_a_model_that_no_commit_touched(
    code: FailureCode, preferred: RestoreFallback
) -> None:
    failed_restore = Failure(Stage.RESTORATION, code, retryable=False, message="x")
    assert after_restore_failure(PREFERRED, failed_restore) is preferred
    assert after_restore_failure(REQUIRED, failed_restore) is RestoreFallback.FAIL_STARTUP


def test_a_producer_may_run_before_the_load_only_if_it_says_so() -> None:
    assert PhasedSample().lookup_phase is LookupPhase.PRE_LOAD_SAFE
    late = PhasedSample(lookup_phase=LookupPhase.POST_LOAD_ONLY)
    store = ScriptedStore([MISS])
    assert outcome(store, PREFERRED, late) is FALLBACK
    assert outcome(store, REQUIRED, late) is FAILED
    assert "build" not in store.asked
