"""The failure table of the Host Weight Runtime, as pure functions.

    condition                                            preferred            required
    exact local hit                                      lease                lease
    local miss                                           next, else fallback  next, else fail
    invalid or denied artifact                           rebuild, else fallb. rebuild, else fail
    retryable lock, domain or capacity failure           fallback             fail
    unsupported producer or backing                      fail                 fail
    identity collision                                   fail                 fail
    pre-load producer or publication failure             fail                 fail
    source, authentication or configuration failure      fail                 fail
    restore planning failure                             fallback, same model fail
    restore commit failure                               fallback, new model  fail

`next` is the remote backing where the policy names one, then a producer that may run before the
load. A lookup that failed or timed out never tries a producer: the store is not well.
"""

from __future__ import annotations

from enum import StrEnum

from weightlease.errors import Failure, FailureCode, Stage
from weightlease.reports import StoreStatus
from weightlease.runtime.policy import RemoteOnMiss, RuntimeMode, RuntimePolicy
from weightlease.runtime.report import Action, Attempt, AttemptResult, ResolutionOutcome

# Lock, domain and capacity. A producer's or a source's own failure stays visible even where it
# calls itself retryable: it would hide a broken deployment behind a slow start.
_PERMITS_FALLBACK = frozenset(
    {
        FailureCode.ACTIVE_BUILD_TIMEOUT,
        FailureCode.ACTIVE_LEASE,
        FailureCode.ARTIFACT_TOO_LARGE,
        FailureCode.DOMAIN_UNAVAILABLE,
        FailureCode.ENOSPC,
        FailureCode.INSUFFICIENT_CAPACITY,
        FailureCode.PRODUCER_UNAVAILABLE,
        FailureCode.QUARANTINE_FAILED,
        FailureCode.STORE_LIMIT_EXCEEDED,
        FailureCode.TOO_MANY_REQUESTS,
    }
)
_LEASED = frozenset({StoreStatus.HIT, StoreStatus.BUILT, StoreStatus.JOINED})
# nothing usable is there, and the store is well: another backing may be tried
ABSENT = frozenset({StoreStatus.MISS, StoreStatus.INVALID})
# how a store's answer reads in an attempt
RESULTS: dict[StoreStatus, AttemptResult] = {
    StoreStatus.HIT: AttemptResult.HIT,
    StoreStatus.JOINED: AttemptResult.HIT,
    StoreStatus.BUILT: AttemptResult.SUCCESS,
    StoreStatus.MISS: AttemptResult.MISS,
    StoreStatus.INVALID: AttemptResult.ERROR,
    StoreStatus.TIMEOUT: AttemptResult.TIMEOUT,
    StoreStatus.FAILED: AttemptResult.ERROR,
}


def permits_fallback(failure: Failure) -> bool:
    """Whether a typed failure lets preferred mode load canonically."""
    return failure.retryable and failure.code in _PERMITS_FALLBACK


def ending(mode: RuntimeMode, *, permitted: bool) -> Action:
    """How a resolution without a lease ends."""
    if mode is RuntimeMode.PREFERRED and permitted:
        return Action.CANONICAL_FALLBACK
    return Action.FAIL_STARTUP


def after_failure(mode: RuntimeMode, failure: Failure) -> Action:
    """What follows a typed failure that no store status softens."""
    return ending(mode, permitted=permits_fallback(failure))


def after_lookup(
    policy: RuntimePolicy, status: StoreStatus, failure: Failure | None, *, can_build: bool
) -> Action:
    """What follows a lookup; `can_build` says whether some producer may run now."""
    if status in _LEASED:
        return Action.RETURN_LEASE
    if status not in ABSENT:
        return _after_unwell(policy.mode, failure)
    if policy.remote is not RemoteOnMiss.DISABLED:
        return Action.TRY_REMOTE
    if not can_build:
        return ending(policy.mode, permitted=True)
    if status is StoreStatus.INVALID:
        return Action.QUARANTINE_THEN_PRODUCE
    return Action.TRY_PRODUCER


def after_build(mode: RuntimeMode, status: StoreStatus, failure: Failure | None) -> Action:
    """What follows a build; one that left nothing to lease is a miss again."""
    if status in _LEASED:
        return Action.RETURN_LEASE
    if status in ABSENT:
        return ending(mode, permitted=True)
    return _after_unwell(mode, failure)


def outcome_of(attempts: tuple[Attempt, ...]) -> ResolutionOutcome:
    """The outcome that the last attempt's action leads to; without attempts nothing was tried."""
    if not attempts:
        return ResolutionOutcome.CANONICAL_DIRECT
    last = attempts[-1]
    if last.action is Action.RETURN_LEASE:
        found = last.stage is Stage.LOOKUP
        return ResolutionOutcome.LOCAL_HIT if found else ResolutionOutcome.LOCAL_PRODUCTION
    if last.action is Action.CANONICAL_FALLBACK:
        return ResolutionOutcome.CANONICAL_FALLBACK
    return ResolutionOutcome.FAILED


class RestoreFallback(StrEnum):
    """What a loader may do after a restore went wrong."""

    SAME_MODEL = "same_model"
    FRESH_MODEL = "fresh_model"
    FAIL_STARTUP = "fail_startup"


def after_restore_failure(mode: RuntimeMode, failure: Failure) -> RestoreFallback:
    """Which model a canonical fallback may use; a planned one is untouched, a committed one lost.

    Anything but the two failures of a restorer is no restore failure and is not forgiven.
    """
    if mode is not RuntimeMode.PREFERRED:
        return RestoreFallback.FAIL_STARTUP
    if failure.code is FailureCode.RESTORE_PREFLIGHT_FAILED:
        return RestoreFallback.SAME_MODEL
    if failure.code is FailureCode.RESTORE_COMMIT_FAILED:
        return RestoreFallback.FRESH_MODEL
    return RestoreFallback.FAIL_STARTUP


def _after_unwell(mode: RuntimeMode, failure: Failure | None) -> Action:
    return Action.FAIL_STARTUP if failure is None else after_failure(mode, failure)
