"""`python hack/docs/failure_modes_document.py FILE`: write the reference of all reasons.

The vocabulary, its exit codes and what is tried again come from the code; what a reason means and
what helps is said here, once for each, and a reason without a row fails.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from weightlease.names import ANNOTATION_FORCE_DELETE, ANNOTATION_RETRY
from weightlease.reasons import EXIT_STATUS, Reason
from weightlease_operator.settings import PlanSettings

_PLAN = PlanSettings()


class Row(NamedTuple):
    """What a reason says, and what helps; nothing helps what is no failure."""

    meaning: str
    helps: str = "—"


GUIDE: dict[Reason, Row] = {
    Reason.PUBLISHED: Row("the Job published the artifact"),
    Reason.ALREADY_PUBLISHED: Row("the node held the artifact already"),
    Reason.REQUEST_INVALID: Row(
        "the producer does not understand what it was asked", "one version of operator and producer"
    ),
    Reason.SOURCE_NOT_FOUND: Row(
        "404: no such repository, commit or path", "correct spec.source; check the token's rights"
    ),
    Reason.SOURCE_UNAUTHORIZED: Row(
        "401 or 403 of the source", "a valid token in spec.source.huggingFace.tokenSecretRef"
    ),
    Reason.SOURCE_RATE_LIMITED: Row("429 of the source", "time, a token, or fewer nodes at once"),
    Reason.SOURCE_UNAVAILABLE: Row(
        "the source did not answer, broke off or answered 5xx", "time; the network to the source"
    ),
    Reason.SOURCE_CHANGED: Row(
        "files are not those of the expected fingerprint or commit", "pin what is meant"
    ),
    Reason.SOURCE_MALFORMED: Row(
        "a file breaks its format: truncated, overlapping, malformed header or index",
        "another copy of the checkpoint",
    ),
    Reason.MISSING_SHARD: Row(
        "the index names a file that is not there", "the whole checkpoint; include and exclude"
    ),
    Reason.CHECKSUM_MISMATCH: Row(
        "bytes that arrived are not those that the source states", "nothing, unless it persists"
    ),
    Reason.IDENTITY_MISMATCH: Row(
        "this node made another key than the canary", "equal sources on all nodes"
    ),
    Reason.CONTENT_MISMATCH: Row(
        "the same key with other bytes", "remove the copy that differs; look at disk and memory"
    ),
    Reason.AGENT_UNAVAILABLE: Row(
        "the node's agent did not answer, or not yet allow it", "the agent's pod and its log"
    ),
    Reason.AGENT_REFUSED: Row("the agent denied the publication", "its message says what is wrong"),
    Reason.INSUFFICIENT_CAPACITY: Row(
        "no room on the node, in its budget or in the namespace's quota",
        "what the message names: delete artifacts, end leases, raise the budget",
    ),
    Reason.PUBLICATION_FAILED: Row(
        "the agent could not publish, or does not list what the Job published", "the agent's log"
    ),
    Reason.INTERRUPTED: Row("the Job's pod was killed, evicted or deleted"),
    Reason.PRODUCER_CRASHED: Row(
        "the producer ended without a reason, or was killed for memory",
        "rollout.resources.limits.memory; the pod's log",
    ),
    Reason.SPEC_INVALID: Row("the spec does not parse", "correct what the message names"),
    Reason.PRODUCER_NOT_FOUND: Row("no such WeightProducer", "spec.producerRef, or create it"),
    Reason.PRODUCER_UNSUPPORTED: Row(
        "the WeightProducer does not read this source or make this representation",
        "another spec.producerRef",
    ),
    Reason.HOST_PATH_NOT_ALLOWED: Row(
        "spec.source.hostPath without the administrator's leave", "operator.allowHostPathSources"
    ),
    Reason.NO_MATCHING_NODE: Row(
        "no node matches the placement and takes Jobs", "spec.placement, cordons, taints"
    ),
    Reason.AGENT_NOT_REPORTING: Row(
        f"agents have not reported for {_PLAN.agent_grace_seconds:g} s", "the agents' pods"
    ),
    Reason.SUSPENDED: Row("spec.rollout.suspend is set", "unset it"),
    Reason.CANARY: Row("a first node fixes keys and digests"),
    Reason.ROLLING_OUT: Row("the other nodes follow"),
    Reason.ALL_NODES_READY: Row("every chosen node holds every shard"),
    Reason.CAPACITY_AVAILABLE: Row("no node is known to lack room"),
    Reason.PREWARM_FAILED: Row(
        "nodes failed for different reasons, or the API server refused a Job",
        "status.failures; quotas and admission policies of the namespace",
    ),
    Reason.DEADLINE_EXCEEDED: Row(
        "a Job ran longer than rollout.timeoutSeconds", "a longer one; the source's speed"
    ),
    Reason.SOURCE_NOT_MOUNTABLE: Row(
        "the claim is missing or does not mount on the node", "what the message names"
    ),
    Reason.IMAGE_NOT_PULLABLE: Row(
        "the producer's image cannot be pulled", "spec.imagePullSecrets; the WeightProducer's image"
    ),
    Reason.POD_NOT_STARTABLE: Row(
        "the Job's pod finds no room or does not start", "what the message names"
    ),
    Reason.CANARY_DISPUTED: Row(
        "at least two nodes agree against the canary; one of them becomes it"
    ),
    Reason.DELETING: Row("agents clean what nothing else names"),
    Reason.LEASED: Row(
        "pods still lease what is to be deleted; the message names them", "end those pods"
    ),
}

_HEAD = f"""\
# Failure modes

Written by `make generate` from the code's own tables.

A reason is the same word wherever it appears: in the condition and in `status.failures` of the
WeightArtifact, as the reason of its event, as the label `reason` of
`weightlease_operator_job_failures_total`, and, for what a producer says, in the termination message
and the exit code of its pod.

## What is tried again

After a failed attempt the same node waits {_PLAN.backoff_base_seconds:g} s, twice as long after
each further one, at most {_PLAN.backoff_cap_seconds:g} s; `status.failures[].retryAt` says until
when. After `rollout.backoffLimit` further attempts the node is given up, and a canary is replaced
by another node. A failure that no attempt can help stops at once. An edit of the source, or another
value of the annotation `{ANNOTATION_RETRY}`, begins anew:

    kubectl annotate weightartifact NAME {ANNOTATION_RETRY}="$(date +%s)" --overwrite

A pod that does not start is told after {_PLAN.start_grace_seconds:g} s, long before the Job's
deadline. A Job that is deleted by hand is made again; a pod that is drained or preempted costs no
attempt.

## Nodes

| the node | its bytes and leases | new Jobs |
|---|---|---|
| is cordoned, NotReady or tainted | stay | none, until it is back |
| has an agent silent for {_PLAN.agent_grace_seconds:g} s | stay | none, until it reports |
| is gone | are forgotten | none |
| is back under its name with an empty store | are made again | at once |
| lost or changed bytes | are made again, or `ContentMismatch` | at once |

## Deleting

Jobs are stopped and entries removed at once; then agents clean what nothing else names. A lease
holds its bytes, and `Leased` names the pods. An agent that has been silent for
{_PLAN.delete_grace_seconds:g} s, and a node that is gone, are not waited for; nor is anything in a
namespace that is being deleted. The annotation `{ANNOTATION_FORCE_DELETE}=true` releases the object
at once; agents still clean when the last lease ends. With `deletionPolicy: Retain` the bytes stay
and their names go on meaning them, until an artifact of the same name takes them over or the
namespace goes.

"""


def _table(title: str, reasons: list[Reason]) -> str:
    rows = "".join(_row(reason) for reason in reasons)
    return (
        f"## {title}\n\n| reason | exit code | tried again | means | what helps |\n"
        f"|---|---|---|---|---|\n{rows}"
    )


def _row(reason: Reason) -> str:
    status, row = EXIT_STATUS.get(reason), GUIDE[reason]
    code = str(status.code) if status else ""
    again = ("yes" if status.retryable else "no") if status and status.code else ""
    return f"| `{reason}` | {code} | {again} | {row.meaning} | {row.helps} |\n"


def document() -> str:
    """The whole page, in Markdown."""
    producer = [reason for reason in Reason if reason in EXIT_STATUS]
    operator = [reason for reason in Reason if reason not in EXIT_STATUS]
    return (
        _HEAD
        + _table("What a prewarm Job says", producer)
        + "\n"
        + _table("What the operator says", operator)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="where the page goes")
    parser.parse_args().file.write_text(document(), encoding="utf-8")


if __name__ == "__main__":
    main()
