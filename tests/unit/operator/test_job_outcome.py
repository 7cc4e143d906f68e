"""How a Job ended, read from what a tenant's pod may have written."""

from __future__ import annotations

from typing import Any

import pytest

from planning_world import KEY, MANIFEST
from weightlease.reasons import EXIT_STATUS, Reason, TerminationMessage, encode_termination
from weightlease_operator.job_outcome import job_view
from weightlease_operator.observation import JobState, JobView
from weightlease_operator.views import job_record, pod_record

FINISHED = "2026-11-30T12:00:00Z"
PUBLISHED = encode_termination(TerminationMessage(Reason.PUBLISHED, "done", False, KEY, MANIFEST))


def job(condition: str = "", reason: str = "") -> dict[str, Any]:
    ended = {"type": condition, "status": "True", "reason": reason, "lastTransitionTime": FINISHED}
    return {
        "metadata": {
            "name": "job",
            "namespace": "team",
            "labels": {"weightlease.io/shard": "model", "weightlease.io/attempt": "1"},
            "annotations": {"weightlease.io/node": "node-1", "weightlease.io/content": "x-1"},
        },
        "status": {"conditions": [ended] if condition else []},
    }


def pod(state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "pod", "namespace": "team", "creationTimestamp": FINISHED},
        "status": {"containerStatuses": [{"state": state}] if state else []} | status,
    }


def ended(code: int, message: str = "", reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "message": message, "reason": reason}}


def read(raw: dict[str, Any], *pods: dict[str, Any]) -> JobView:
    return job_view(job_record(raw), [pod_record(each) for each in pods])


def test_a_published_job_names_its_digests() -> None:
    view = read(job("Complete"), pod(ended(0, PUBLISHED)))
    assert (view.state, view.node, view.attempt) == (JobState.SUCCEEDED, "node-1", 1)
    assert view.outcome is not None
    assert (view.outcome.key, view.outcome.manifest_sha256) == (KEY, MANIFEST)


@pytest.mark.parametrize("reason", [each for each, status in EXIT_STATUS.items() if status.code])
def test_a_failed_jobs_message_counts_and_else_its_exit_code(reason: Reason) -> None:
    status = EXIT_STATUS[reason]
    said = encode_termination(TerminationMessage(reason, "why", status.retryable))
    for view in (
        read(job("Failed", "BackoffLimitExceeded"), pod(ended(status.code, said))),
        read(job("Failed", "PodFailurePolicy"), pod(ended(status.code, "not json"))),
    ):
        assert view.state is JobState.FAILED
        assert view.outcome is not None
        assert (view.outcome.reason, view.outcome.retryable) == (reason, status.retryable)


@pytest.mark.parametrize(
    ("raw", "pods", "reason"),
    [
        (job("Failed", "DeadlineExceeded"), [], Reason.DEADLINE_EXCEEDED),
        (job("Failed", "BackoffLimitExceeded"), [], Reason.INTERRUPTED),
        (job("Failed"), [pod(ended(137))], Reason.INTERRUPTED),
        (job("Failed"), [pod(ended(143))], Reason.INTERRUPTED),
        (job("Failed"), [pod(ended(137, reason="OOMKilled"))], Reason.PRODUCER_CRASHED),
        (job("Failed"), [pod(ended(99))], Reason.PRODUCER_CRASHED),
        (job("Complete"), [pod(ended(0))], Reason.PRODUCER_CRASHED),
        (job("Complete"), [], Reason.PRODUCER_CRASHED),
    ],
    ids=["deadline", "no pod", "killed", "terminated", "memory", "unknown", "silent", "vanished"],
)
def test_without_a_message_the_reason_is_what_is_known(
    raw: dict[str, Any], pods: list[dict[str, Any]], reason: Reason
) -> None:
    view = read(raw, *pods)
    assert view.outcome is not None
    assert view.outcome.reason is reason
    assert view.outcome.retryable


def test_a_key_that_is_none_is_not_believed() -> None:
    lie = encode_termination(TerminationMessage(Reason.PUBLISHED, "", False, "../../etc"))
    view = read(job("Complete"), pod(ended(0, lie)))
    assert view.outcome is not None
    assert view.outcome.reason is Reason.PRODUCER_CRASHED
    assert view.outcome.key == ""


def test_the_newest_pod_tells() -> None:
    old = pod(ended(82))
    new = pod(ended(66))
    new["metadata"] |= {"name": "a-later-pod", "creationTimestamp": "2026-11-30T12:05:00Z"}
    view = read(job("Failed"), new, old)
    assert view.outcome is not None
    assert view.outcome.reason is Reason.SOURCE_UNAUTHORIZED


def unscheduled(message: str) -> dict[str, Any]:
    return pod(conditions=[{"type": "PodScheduled", "status": "False", "message": message}])


def waiting(reason: str) -> dict[str, Any]:
    return pod({"waiting": {"reason": reason, "message": "because"}})


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (unscheduled('persistentvolumeclaim "data" not found'), Reason.SOURCE_NOT_MOUNTABLE),
        (unscheduled("1 node(s) had volume node affinity conflict"), Reason.SOURCE_NOT_MOUNTABLE),
        (unscheduled("0/1 nodes are available: Insufficient memory"), Reason.POD_NOT_STARTABLE),
        (waiting("ImagePullBackOff"), Reason.IMAGE_NOT_PULLABLE),
        (waiting("CreateContainerConfigError"), Reason.POD_NOT_STARTABLE),
    ],
)
def test_a_pod_that_does_not_start_says_why(raw: dict[str, Any], reason: Reason) -> None:
    view = read(job(), raw)
    assert view.state is JobState.ACTIVE
    assert view.blocked is not None
    assert view.blocked.reason is reason


def test_a_pod_that_is_only_starting_is_no_problem() -> None:
    assert read(job(), waiting("ContainerCreating")).blocked is None
    assert read(job()).blocked is None


def test_a_pod_that_has_its_node_and_does_not_run_is_starting() -> None:
    bound = waiting("ContainerCreating") | {"spec": {"nodeName": "node-1"}}
    bound["metadata"]["uid"] = "pod-uid"
    bound["status"]["phase"] = "Pending"
    view = read(job(), bound)
    assert view.starting is not None
    assert view.starting.uid == "pod-uid"
    assert view.starting.since.isoformat() == "2026-11-30T12:00:00+00:00"
    bound["status"]["phase"] = "Running"
    assert read(job(), bound).starting is None
    assert read(job("Failed"), bound).starting is None
