"""What a `HostWeightRuntime` promises over any `HostWeightStore`; see `store_conformance`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from phased_producer import PhasedSample, post_load
from sample_producer import PAYLOADS, fine_tune
from store_conformance import PAYLOAD, StoreWorld, child, flip_last_byte
from weightlease.errors import FailureCode
from weightlease.policy import Validation, WaitPolicy
from weightlease.reports import CleanupStatus
from weightlease.runtime import (
    Action,
    AttemptResult,
    HostWeightRuntime,
    PublicationOutcome,
    ResolutionOutcome,
    RuntimeMode,
    RuntimePolicy,
)
from weightlease.store.protocol import FileWriter

ENABLED = [RuntimeMode.PREFERRED, RuntimeMode.REQUIRED]
WITHOUT_LEASE = {
    RuntimeMode.PREFERRED: (ResolutionOutcome.CANONICAL_FALLBACK, Action.CANONICAL_FALLBACK),
    RuntimeMode.REQUIRED: (ResolutionOutcome.FAILED, Action.FAIL_STARTUP),
}


def runtime(
    world: StoreWorld,
    mode: RuntimeMode,
    *,
    allow_post_load_publish: bool = False,
    validation: Validation = Validation.MANIFEST_AND_METADATA,
    timeout: float = 600.0,
) -> HostWeightRuntime:
    policy = RuntimePolicy(
        mode,
        validation=validation,
        allow_post_load_publish=allow_post_load_publish,
        wait=WaitPolicy(timeout),
    )
    return HostWeightRuntime(world.open, policy)


def never() -> PhasedSample:
    raise AssertionError("no producer is needed here")


class RuntimeConformance:
    """The rows of the failure table that a real store can bring about."""

    @pytest.mark.parametrize("mode", ENABLED)
    def test_a_miss_builds_and_the_next_start_hits_without_a_producer(
        self, world: StoreWorld, mode: RuntimeMode
    ) -> None:
        with runtime(world, mode).resolve(lambda: fine_tune(0), PhasedSample) as built:
            assert built.report.outcome is ResolutionOutcome.LOCAL_PRODUCTION
            assert [attempt.action for attempt in built.report.attempts] == [
                Action.TRY_PRODUCER,
                Action.RETURN_LEASE,
            ]
        with runtime(world, mode).resolve(lambda: fine_tune(0), never) as warm:
            assert warm.report.outcome is ResolutionOutcome.LOCAL_HIT
            assert warm.report.key == fine_tune(0).key
            with warm.take() as lease:
                assert bytes(lease.buffer("encoder.weight")) == bytes(range(24))

    @pytest.mark.parametrize("mode", ENABLED)
    def test_a_miss_without_a_producer_ends_as_the_mode_says(
        self, world: StoreWorld, mode: RuntimeMode
    ) -> None:
        report = runtime(world, mode).resolve(lambda: fine_tune(0)).report
        assert (report.outcome, report.attempts[-1].action) == WITHOUT_LEASE[mode]
        assert report.attempts[0].result is AttemptResult.MISS
        assert report.failure is not None
        assert report.failure.code is FailureCode.PRODUCER_UNAVAILABLE

    @pytest.mark.parametrize("mode", ENABLED)
    def test_an_invalid_artifact_is_quarantined_and_rebuilt(
        self, world: StoreWorld, mode: RuntimeMode
    ) -> None:
        self._damage(world)
        full = Validation.FULL_CHECKSUM
        strict = runtime(world, mode, validation=full)
        with strict.resolve(lambda: fine_tune(0), PhasedSample) as rebuilt:
            assert rebuilt.report.outcome is ResolutionOutcome.LOCAL_PRODUCTION
            first = rebuilt.report.attempts[0]
            assert first.action is Action.QUARANTINE_THEN_PRODUCE
            assert first.failure is not None
            assert first.failure.code is FailureCode.CHECKSUM_MISMATCH
        with strict.resolve(lambda: fine_tune(0), never) as warm:
            assert warm.report.outcome is ResolutionOutcome.LOCAL_HIT

    @pytest.mark.parametrize("mode", ENABLED)
    def test_an_invalid_artifact_that_nobody_can_rebuild_ends_as_the_mode_says(
        self, world: StoreWorld, mode: RuntimeMode
    ) -> None:
        self._damage(world)
        strict = runtime(world, mode, validation=Validation.FULL_CHECKSUM)
        report = strict.resolve(lambda: fine_tune(0)).report
        assert (report.outcome, report.attempts[-1].action) == WITHOUT_LEASE[mode]

    @pytest.mark.parametrize("mode", ENABLED)
    def test_waiting_for_another_builder_ends_as_the_mode_says(
        self, world: StoreWorld, mode: RuntimeMode
    ) -> None:
        world.open()
        with child(world, "build") as builder:
            assert builder.hears() == "producing"
            late = runtime(world, mode, timeout=0.2).resolve(lambda: fine_tune(0), PhasedSample)
            assert (late.report.outcome, late.report.attempts[-1].action) == WITHOUT_LEASE[mode]
            assert late.report.attempts[-1].result is AttemptResult.TIMEOUT
            assert late.report.failure is not None
            assert late.report.failure.code is FailureCode.ACTIVE_BUILD_TIMEOUT
            builder.go_on()
            assert builder.hears() == "built", "a deadline cancels nobody else's production"

    @pytest.mark.parametrize("mode", ENABLED)
    def test_a_producer_that_fails_is_visible_in_every_mode(
        self, world: StoreWorld, mode: RuntimeMode
    ) -> None:
        def fail(writer: FileWriter) -> None:
            raise RuntimeError("out of luck")

        report = (
            runtime(world, mode)
            .resolve(lambda: fine_tune(0), lambda: replace(PhasedSample(), during=fail))
            .report
        )
        assert report.outcome is ResolutionOutcome.FAILED
        assert report.failure is not None
        assert report.failure.code is FailureCode.PRODUCER_FAILED

    def test_a_post_load_producer_never_runs_before_the_load(self, world: StoreWorld) -> None:
        def run(writer: FileWriter) -> None:
            raise AssertionError("ran before the load")

        report = (
            runtime(world, RuntimeMode.PREFERRED)
            .resolve(lambda: fine_tune(0), lambda: replace(post_load(), during=run))
            .report
        )
        assert report.outcome is ResolutionOutcome.CANONICAL_FALLBACK
        assert report.attempts[-1].result is AttemptResult.SKIPPED

    def test_a_publication_after_the_load_warms_the_next_start_and_keeps_no_lease(
        self, world: StoreWorld
    ) -> None:
        enabled = runtime(world, RuntimeMode.PREFERRED, allow_post_load_publish=True)
        report = enabled.publish_after_load(lambda: fine_tune(0), post_load)
        assert (report.outcome, report.failure) == (PublicationOutcome.PUBLISHED, None)
        again = enabled.publish_after_load(lambda: fine_tune(0), post_load)
        assert again.outcome is PublicationOutcome.ALREADY_PRESENT
        with enabled.resolve(lambda: fine_tune(0)) as warm:
            assert warm.report.outcome is ResolutionOutcome.LOCAL_HIT
        assert world.open().cleanup(fine_tune(0).key).status is CleanupStatus.REMOVED

    def test_publications_after_the_load_are_gated_on_their_own(self, world: StoreWorld) -> None:
        closed = runtime(world, RuntimeMode.PREFERRED)
        report = closed.publish_after_load(lambda: fine_tune(0), never)
        assert report.outcome is PublicationOutcome.POLICY_DISABLED
        with closed.resolve(lambda: fine_tune(0), PhasedSample) as built:
            assert built.report.outcome is ResolutionOutcome.LOCAL_PRODUCTION

    def test_a_failed_publication_after_the_load_leaves_the_fallback_as_it_was(
        self, world: StoreWorld
    ) -> None:
        enabled = runtime(world, RuntimeMode.PREFERRED, allow_post_load_publish=True)
        resolved = enabled.resolve(lambda: fine_tune(0)).report
        short = replace(post_load(), payloads={PAYLOAD: PAYLOADS[PAYLOAD][:-1]})
        broken = replace(short, declared={PAYLOAD: len(PAYLOADS[PAYLOAD])})
        report = enabled.publish_after_load(lambda: fine_tune(0), lambda: broken)
        assert report.outcome is PublicationOutcome.FAILED
        assert report.failure is not None
        assert report.failure.code is FailureCode.PRODUCER_FAILED
        assert resolved.outcome is ResolutionOutcome.CANONICAL_FALLBACK

    def test_publish_after_load_takes_no_pre_load_producer(self, world: StoreWorld) -> None:
        enabled = runtime(world, RuntimeMode.PREFERRED, allow_post_load_publish=True)
        report = enabled.publish_after_load(lambda: fine_tune(0), PhasedSample)
        assert report.outcome is PublicationOutcome.FAILED
        assert report.failure is not None
        assert report.failure.code is FailureCode.PRODUCER_UNSUPPORTED

    def _damage(self, world: StoreWorld) -> None:
        build: Callable[[], PhasedSample] = PhasedSample
        runtime(world, RuntimeMode.REQUIRED).resolve(lambda: fine_tune(0), build).take().close()
        flip_last_byte(world.root / "artifacts" / fine_tune(0).key / PAYLOAD)
