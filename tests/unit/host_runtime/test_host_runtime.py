"""Reports, the hand-over of a lease, and what a runtime keeps for itself."""

from __future__ import annotations

import fcntl
import pickle
from itertools import count
from pathlib import Path

import pytest

from phased_producer import PhasedSample, post_load
from sample_producer import fine_tune
from scripted_store import ScriptedStore, failure
from small_artifact import make_artifact
from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.identity import WeightArtifactIdentity
from weightlease.policy import WaitPolicy
from weightlease.reports import StoreResult, StoreStatus
from weightlease.runtime import (
    AttemptResult,
    HostWeightRuntime,
    PublicationOutcome,
    PublicationReport,
    ResolutionOutcome,
    ResolutionReport,
    RuntimeMode,
    RuntimePolicy,
)
from weightlease.store.local import LocalStore

MISS = StoreResult(StoreStatus.MISS)
ENABLED = RuntimePolicy(RuntimeMode.PREFERRED, allow_post_load_publish=True)
Reports = list[ResolutionReport | PublicationReport]


def forbidden() -> WeightArtifactIdentity:
    raise AssertionError("touched")


def no_producer() -> PhasedSample:
    raise AssertionError("touched")


def no_store() -> LocalStore:
    raise AssertionError("touched")


def test_disabled_touches_neither_store_nor_identity_nor_producer() -> None:
    reports: Reports = []
    runtime = HostWeightRuntime(no_store, RuntimePolicy(), observe=reports.append)
    resolved = runtime.resolve(forbidden, no_producer)
    published = runtime.publish_after_load(forbidden, no_producer)
    assert resolved.report.outcome is ResolutionOutcome.CANONICAL_DIRECT
    assert resolved.report.attempts == ()
    assert published.outcome is PublicationOutcome.RUNTIME_DISABLED
    assert reports == [resolved.report, published]


def test_each_resolution_gives_exactly_one_report_of_timed_attempts() -> None:
    reports: Reports = []
    ticks = count()
    store = ScriptedStore([MISS], [StoreResult(StoreStatus.FAILED, failure=failure(_FULL))])
    runtime = HostWeightRuntime(
        lambda: store, ENABLED, observe=reports.append, clock=lambda: float(next(ticks))
    )
    first = runtime.resolve(lambda: fine_tune(0), PhasedSample).report
    second = runtime.resolve(lambda: fine_tune(0), PhasedSample).report
    assert reports == [first, second]
    assert first.resolution_id != second.resolution_id
    assert [attempt.stage for attempt in first.attempts] == [Stage.LOOKUP, Stage.PRODUCTION]
    assert all(attempt.elapsed_seconds > 0 for attempt in first.attempts)
    assert sum(attempt.elapsed_seconds for attempt in first.attempts) <= first.elapsed_seconds


_FULL = FailureCode.ENOSPC


def test_an_observer_that_fails_changes_nothing() -> None:
    def fail(report: object) -> None:
        raise RuntimeError("observer")

    runtime = HostWeightRuntime(lambda: ScriptedStore([MISS]), ENABLED, observe=fail)
    report = runtime.resolve(lambda: fine_tune(0)).report
    assert report.outcome is ResolutionOutcome.CANONICAL_FALLBACK


def test_lookup_and_build_share_one_coordination_budget() -> None:
    ticks = count()
    store = ScriptedStore([MISS], [StoreResult(StoreStatus.FAILED, failure=failure(_FULL))])
    policy = RuntimePolicy(RuntimeMode.REQUIRED, wait=WaitPolicy(100.0))
    runtime = HostWeightRuntime(lambda: store, policy, clock=lambda: float(next(ticks)))
    runtime.resolve(lambda: fine_tune(0), PhasedSample)
    first, second = store.timeouts
    assert first is not None
    assert second is not None
    assert 0 < second < first < 100.0


@pytest.mark.parametrize("mode", [RuntimeMode.PREFERRED, RuntimeMode.REQUIRED])
def test_a_source_that_cannot_be_identified_stays_visible_even_if_it_calls_itself_retryable(
    mode: RuntimeMode,
) -> None:
    def unavailable() -> WeightArtifactIdentity:
        raise WeightLeaseError(failure(FailureCode.DOMAIN_UNAVAILABLE, retryable=True))

    store = ScriptedStore([MISS])
    runtime = HostWeightRuntime(lambda: store, RuntimePolicy(mode))
    assert runtime.resolve(unavailable).report.outcome is ResolutionOutcome.FAILED
    assert store.asked == []


def test_an_identity_that_raises_anything_is_a_typed_failure() -> None:
    def broken() -> WeightArtifactIdentity:
        raise ValueError("no such branch")

    runtime = HostWeightRuntime(lambda: ScriptedStore([MISS]), ENABLED)
    report = runtime.resolve(broken).report
    assert report.outcome is ResolutionOutcome.FAILED
    assert report.failure is not None
    assert report.failure.code is FailureCode.CANONICAL_SOURCE_FAILED
    published = runtime.publish_after_load(broken, post_load)
    assert published.failure is not None
    assert published.failure.code is FailureCode.CANONICAL_SOURCE_FAILED


def test_a_producer_that_cannot_be_made_is_a_typed_failure() -> None:
    def broken() -> PhasedSample:
        raise ValueError("no such plan")

    runtime = HostWeightRuntime(lambda: ScriptedStore([MISS]), ENABLED)
    report = runtime.resolve(lambda: fine_tune(0), broken).report
    assert report.outcome is ResolutionOutcome.FAILED
    assert report.failure is not None
    assert report.failure.code is FailureCode.PRODUCER_FAILED


def test_a_timed_out_runtime_keeps_its_failure_and_a_fresh_one_may_succeed(tmp_path: Path) -> None:
    root = tmp_path / "domain"
    LocalStore(root)

    def make() -> HostWeightRuntime:
        wait = WaitPolicy(0.05)
        return HostWeightRuntime(lambda: LocalStore(root, wait=wait), ENABLED)

    with open(root / "locks" / "domain-init.lock") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        late = make()
    reports = [late.resolve(forbidden).report for _ in range(2)]
    assert {report.outcome for report in reports} == {ResolutionOutcome.CANONICAL_FALLBACK}
    original = reports[0].failure
    assert original is not None
    assert (original.code, original.retryable) == (FailureCode.DOMAIN_UNAVAILABLE, True)
    assert reports[1].failure is original
    published = late.publish_after_load(forbidden, post_load)
    assert (published.outcome, published.failure) == (PublicationOutcome.FAILED, original)
    fresh = make()
    with fresh.resolve(lambda: fine_tune(0), PhasedSample) as resolution:
        assert resolution.report.outcome is ResolutionOutcome.LOCAL_PRODUCTION


def test_a_lease_is_handed_over_once_and_closed_if_nobody_takes_it(tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path / "a", {"m.safetensors": {"w": ("F32", (1,), bytes(4))}})
    results = [StoreResult(StoreStatus.HIT, artifact.lease()) for _ in range(2)]
    runtime = HostWeightRuntime(lambda: ScriptedStore(results), ENABLED)
    with runtime.resolve(lambda: fine_tune(0)) as resolution:
        lease = resolution.take()
        with pytest.raises(WeightLeaseError, match="taken before"):
            resolution.take()
    assert artifact.is_leased(), "what was taken is the taker's"
    lease.close()
    with runtime.resolve(lambda: fine_tune(0)) as untaken:
        assert untaken.leased
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(untaken)
    assert not artifact.is_leased()


def test_a_fallback_has_no_lease_to_take() -> None:
    runtime = HostWeightRuntime(lambda: ScriptedStore([MISS]), ENABLED)
    with pytest.raises(WeightLeaseError, match="canonical_fallback"):
        runtime.resolve(lambda: fine_tune(0)).take()


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (StoreStatus.BUILT, PublicationOutcome.PUBLISHED),
        (StoreStatus.JOINED, PublicationOutcome.JOINED),
        (StoreStatus.HIT, PublicationOutcome.ALREADY_PRESENT),
    ],
)
def test_a_publication_says_who_published(
    tmp_path: Path, status: StoreStatus, outcome: PublicationOutcome
) -> None:
    artifact = make_artifact(tmp_path / "a", {"m.safetensors": {"w": ("F32", (1,), bytes(4))}})
    store = ScriptedStore([MISS], [StoreResult(status, artifact.lease())])
    runtime = HostWeightRuntime(lambda: store, ENABLED)
    report = runtime.publish_after_load(lambda: fine_tune(0), post_load)
    assert (report.outcome, report.key) == (outcome, fine_tune(0).key)
    assert not artifact.is_leased()


def test_a_publication_whose_lease_does_not_close_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = make_artifact(tmp_path / "a", {"m.safetensors": {"w": ("F32", (1,), bytes(4))}})
    lease = artifact.lease()

    def fail() -> None:
        raise OSError("close")

    store = ScriptedStore([MISS], [StoreResult(StoreStatus.BUILT, lease)])
    runtime = HostWeightRuntime(lambda: store, ENABLED)
    with monkeypatch.context() as patched:
        patched.setattr(lease, "close", fail)
        report = runtime.publish_after_load(lambda: fine_tune(0), post_load)
    lease.close()
    assert report.outcome is PublicationOutcome.FAILED
    assert report.failure is not None
    assert report.failure.stage is Stage.LIFECYCLE


def test_a_skipped_producer_reads_as_skipped() -> None:
    runtime = HostWeightRuntime(lambda: ScriptedStore([MISS]), ENABLED)
    last = runtime.resolve(lambda: fine_tune(0), post_load).report.attempts[-1]
    assert last.result is AttemptResult.SKIPPED
