"""How a Job ended, or why it does not start: from its conditions and its pod, to a typed reason.

how it ended                                        reason                    retryable
the producer's termination message                  what it says              what it says
Job condition DeadlineExceeded                      DeadlineExceeded          yes
container killed for memory                         ProducerCrashed           yes
an exit code of weightlease.reasons                 that code's reason        that code's
a signal (137, 143), or no pod any more             Interrupted               yes
anything else                                       ProducerCrashed           yes
"""

from __future__ import annotations

from collections.abc import Sequence

from weightlease.identity import is_key
from weightlease.reasons import EXIT_STATUS, Reason, TerminationMessage, decode_termination
from weightlease_operator.observation import (
    JobState,
    JobView,
    Outcome,
    Problem,
    StartingPod,
)
from weightlease_operator.views import JobRecord, PodRecord, parse_time

_BY_CODE = {status.code: reason for reason, status in EXIT_STATUS.items() if status.code}
_SIGNALS = frozenset({137, 143})
_IMAGE_PROBLEMS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
)
_CREATE_PROBLEMS = frozenset({"CreateContainerConfigError", "CreateContainerError"})
_MESSAGE_LIMIT = 2048


def job_view(record: JobRecord, pods: Sequence[PodRecord]) -> JobView:
    """One Job with what its newest pod tells about it."""
    pod = max(pods, key=lambda each: (each.created, each.name), default=None)
    state = _state(record)
    blocked = _blocked(pod) if state is JobState.ACTIVE and pod else None
    starts = state is JobState.ACTIVE and blocked is None and pod is not None
    return JobView(
        name=record.name,
        component=record.component,
        node=record.node,
        node_uid=record.node_uid,
        attempt=record.attempt,
        content=record.content,
        retry=record.retry,
        state=state,
        finished_at=record.finished_at,
        outcome=None if state is JobState.ACTIVE else _outcome(record, pod),
        blocked=blocked,
        starting=_starting(pod) if starts and pod else None,
        deleting=record.deleting,
    )


def _state(record: JobRecord) -> JobState:
    if record.failure:
        return JobState.FAILED
    return JobState.SUCCEEDED if record.succeeded else JobState.ACTIVE


def _outcome(record: JobRecord, pod: PodRecord | None) -> Outcome:
    if record.failure == "DeadlineExceeded":
        message = record.failure_message or "the Job ran longer than rollout.timeoutSeconds"
        return Outcome(Reason.DEADLINE_EXCEEDED, message, retryable=True)
    said = decode_termination(pod.termination) if pod and pod.termination else None
    if said is not None:
        return _as_said(record, said)
    if record.succeeded:
        message = "the producer ended well but left no termination message"
        return Outcome(Reason.PRODUCER_CRASHED, message, retryable=True)
    return _unsaid(record, pod)


def _as_said(record: JobRecord, said: TerminationMessage) -> Outcome:
    key = said.key if is_key(said.key) else ""
    if record.succeeded and not key:
        message = "the producer ended well but named no key"
        return Outcome(Reason.PRODUCER_CRASHED, message, retryable=True)
    digest = said.manifest_sha256 if is_key(said.manifest_sha256) else ""
    return Outcome(said.reason, said.message[:_MESSAGE_LIMIT], said.retryable, key, digest)


def _unsaid(record: JobRecord, pod: PodRecord | None) -> Outcome:
    if pod is None or pod.exit_code is None:
        message = record.failure_message or "the Job's pod is gone"
        return Outcome(Reason.INTERRUPTED, message[:_MESSAGE_LIMIT], retryable=True)
    if pod.exit_reason == "OOMKilled":
        message = "the producer was killed for memory; raise its memory limit"
        return Outcome(Reason.PRODUCER_CRASHED, message, retryable=True)
    message = f"the producer ended with exit code {pod.exit_code}"
    reason = _BY_CODE.get(pod.exit_code)
    if reason is not None:
        return Outcome(reason, message, EXIT_STATUS[reason].retryable)
    signalled = pod.exit_code in _SIGNALS
    return Outcome(
        Reason.INTERRUPTED if signalled else Reason.PRODUCER_CRASHED, message, retryable=True
    )


def _starting(pod: PodRecord) -> StartingPod | None:
    created = parse_time(pod.created)
    if not pod.node or pod.phase != "Pending" or created is None:
        return None
    return StartingPod(pod.uid, created)


def _blocked(pod: PodRecord) -> Problem | None:
    message = (pod.waiting_message or pod.waiting_reason)[:_MESSAGE_LIMIT]
    if pod.waiting_reason in _IMAGE_PROBLEMS:
        return Problem(Reason.IMAGE_NOT_PULLABLE, message)
    if pod.waiting_reason in _CREATE_PROBLEMS:
        return Problem(Reason.POD_NOT_STARTABLE, message)
    if not pod.unschedulable:
        return None
    # The scheduler's text is all there is to tell a volume from a lack of memory.
    about_volume = "volume" in pod.unschedulable.lower()
    reason = Reason.SOURCE_NOT_MOUNTABLE if about_volume else Reason.POD_NOT_STARTABLE
    return Problem(reason, pod.unschedulable[:_MESSAGE_LIMIT])
