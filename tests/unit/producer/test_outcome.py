"""Every failure ends the process with one reason, and retries are not stopped by mistake."""

from __future__ import annotations

import pytest

from weightlease.errors import Failure, FailureCode, Stage, WeightLeaseError
from weightlease.producer.outcome import Interrupted, ending, reason_of
from weightlease.reasons import EXIT_STATUS, Reason
from weightlease.source.errors import SourceError


@pytest.mark.parametrize("code", FailureCode)
@pytest.mark.parametrize("retryable", [True, False])
def test_every_failure_has_a_reason_and_a_retryable_one_stays_retryable(
    code: FailureCode, retryable: bool
) -> None:
    reason = reason_of(Failure(Stage.PRODUCTION, code, retryable, "x"))
    assert EXIT_STATUS[reason].code != 0
    assert EXIT_STATUS[reason].retryable or not retryable


@pytest.mark.parametrize("reason", [reason for reason in EXIT_STATUS if EXIT_STATUS[reason].code])
def test_a_sources_reason_is_the_processs_reason(reason: Reason) -> None:
    message = ending(SourceError(reason, "text"))
    assert (message.reason, message.message) == (reason, "text")
    assert message.retryable is EXIT_STATUS[reason].retryable


def test_a_lying_safetensors_file_is_the_sources_fault() -> None:
    failure = WeightLeaseError.of(Stage.VALIDATION, FailureCode.MANIFEST_CORRUPT, "hole")
    assert ending(failure).reason is Reason.SOURCE_MALFORMED


def test_sigterm_is_interrupted_and_what_nobody_foresaw_is_a_crash() -> None:
    assert ending(Interrupted()).reason is Reason.INTERRUPTED
    crash = ending(RuntimeError("boom"))
    assert crash.reason is Reason.PRODUCER_CRASHED
    assert crash.message == "RuntimeError: boom"


@pytest.mark.parametrize(
    ("stage", "retryable", "reason"),
    [
        (Stage.CAPACITY, True, Reason.INSUFFICIENT_CAPACITY),
        (Stage.PRODUCTION, False, Reason.AGENT_REFUSED),
    ],
)
def test_a_node_without_room_for_an_artifact_says_so_whatever_the_limit(
    stage: Stage, retryable: bool, reason: Reason
) -> None:
    failure = Failure(stage, FailureCode.ARTIFACT_TOO_LARGE, retryable, "x")
    assert reason_of(failure) is reason
