"""The WeightArtifact's status, computed anew on each pass from what is observed.

    Ready         True when every counted node holds every shard, verified
    Progressing   True while the operator works or will work on its own
    Degraded      True when something needs a person: a final failure, a wrong reference, a pod
                  that cannot start
    CapacityAvailable   False while a node has no room; the message is its agent's, which names what
                  would free space. It stays while the next attempt runs

The reason of Ready is the first row of READY_RULES that holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from weightlease.api.base import Condition, ConditionStatus
from weightlease.api.weight_artifact import (
    ConditionType,
    NodeCounts,
    NodeFailure,
    Progress,
    ShardStatus,
    WeightArtifactStatus,
)
from weightlease.reasons import Reason
from weightlease_operator.observation import Observation, Problem
from weightlease_operator.placement import NodeState
from weightlease_operator.shards import Attempt, NodeShard, Phase

_FAILURES_SHOWN = 10
_MESSAGE_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class Facts:
    """What the conditions are computed from; counts are of nodes.

    `moving` nodes work unhindered; `stuck` says that a canary failed in a way no retry can help.
    """

    desired: int
    ready: int
    progressing: int
    failed: int
    silent: int
    moving: int
    unfixed: int
    stuck: bool
    suspended: bool
    problem: Problem | None
    failures: tuple[NodeFailure, ...]
    trying_again: bool = False

    @property
    def all_ready(self) -> bool:
        return self.desired > 0 and self.ready == self.desired

    @property
    def at_work(self) -> bool:
        """Whether the operator, or a Job, goes on by itself."""
        left = self.desired - self.ready - self.failed > 0
        held_up = self.suspended or self.stuck or self.problem is not None
        return self.progressing > 0 or (left and not held_up)

    @property
    def trouble(self) -> Problem | None:
        """What needs a person."""
        if self.problem is not None:
            return self.problem
        lasting = [failure for failure in self.failures if failure.retry_at is None]
        if not lasting:
            return None
        reasons = {failure.reason for failure in lasting}
        reason = Reason(reasons.pop()) if len(reasons) == 1 else Reason.PREWARM_FAILED
        first = lasting[0]
        return Problem(reason, f"{first.node}: {first.message}")


_Rule = tuple[Callable[[Facts], bool], Reason | None]
# None stands for the reason of the trouble itself
READY_RULES: tuple[_Rule, ...] = (
    (lambda facts: facts.all_ready, Reason.ALL_NODES_READY),
    (lambda facts: facts.problem is not None, None),
    (lambda facts: facts.desired == 0, Reason.NO_MATCHING_NODE),
    (lambda facts: facts.trouble is not None and not facts.moving, None),
    (lambda facts: facts.suspended, Reason.SUSPENDED),
    (lambda facts: facts.ready + facts.silent == facts.desired, Reason.AGENT_NOT_REPORTING),
    (lambda facts: facts.unfixed > 0, Reason.CANARY),
    (lambda _facts: True, Reason.ROLLING_OUT),
)


def tally(
    rows: Sequence[NodeShard],
    shards: Mapping[str, ShardStatus],
    components: int,
    *,
    suspended: bool,
    problem: Problem | None,
) -> Facts:
    """Count nodes; see `placement` for which count."""
    nodes: dict[str, list[NodeShard]] = {}
    for row in rows:
        nodes.setdefault(row.node, []).append(row)
    counted = [own for own in nodes.values() if _counts(own)]
    return Facts(
        desired=len(counted),
        ready=sum(_all_in(own, Phase.READY) for own in counted),
        progressing=sum(any(row.phase is Phase.WORKING for row in own) for own in counted),
        failed=sum(any(row.phase is Phase.FAILED for row in own) for own in counted),
        silent=sum(own[0].state is NodeState.SILENT for own in counted),
        moving=sum(any(_moves(row) for row in own) for own in counted),
        unfixed=components - len(shards),
        stuck=any(row.attempt is Attempt.FINAL and row.component not in shards for row in rows),
        suspended=suspended,
        problem=problem,
        failures=_failures(rows),
        trying_again=any(row.phase is Phase.WORKING and row.attempts > 1 for row in rows),
    )


def _counts(own: Sequence[NodeShard]) -> bool:
    return own[0].state in (NodeState.SILENT, NodeState.ELIGIBLE) or _all_in(own, Phase.READY)


def _moves(row: NodeShard) -> bool:
    return row.phase is Phase.WORKING and row.problem is None


def _all_in(own: Sequence[NodeShard], phase: Phase) -> bool:
    return all(row.phase is phase for row in own)


def _failures(rows: Sequence[NodeShard]) -> tuple[NodeFailure, ...]:
    troubled = [row for row in rows if row.problem is not None and row.phase is not Phase.READY]
    troubled.sort(key=lambda row: (row.phase is not Phase.FAILED, row.node, row.component))
    return tuple(
        NodeFailure(
            node=row.node,
            component=row.component,
            reason=row.problem.reason,
            message=row.problem.message[:_MESSAGE_LIMIT],
            attempts=row.attempts,
            retry_at=format_time(row.retry_at or _due_now(row)),
        )
        for row in troubled
        if row.problem is not None
    )


def _due_now(row: NodeShard) -> datetime | None:
    """A retry that only waits for its turn is no lasting failure."""
    pending = row.phase is Phase.PENDING and row.job is not None
    return row.job.finished_at if pending and row.job else None


def full_status(
    observed: Observation,
    facts: Facts,
    shards: Sequence[ShardStatus],
    content: str,
    progress: Progress | None,
) -> WeightArtifactStatus:
    return WeightArtifactStatus(
        observed_generation=observed.artifact.metadata.generation,
        content=content,
        conditions=conditions(
            observed,
            {**_verdicts(facts), ConditionType.CAPACITY_AVAILABLE: _capacity(observed, facts)},
        ),
        shards=list(shards),
        nodes=NodeCounts(
            desired=facts.desired,
            ready=facts.ready,
            progressing=facts.progressing,
            failed=facts.failed,
            summary=f"{facts.ready}/{facts.desired}",
        ),
        size=humanised(sum(shard.bytes for shard in shards)) if shards else "",
        progress=progress,
        failures=list(facts.failures[:_FAILURES_SHOWN]),
    )


Verdict = tuple[bool, Reason, str]
Verdicts = Mapping[ConditionType, Verdict]


def _capacity(observed: Observation, facts: Facts) -> Verdict:
    short = [each for each in facts.failures if each.reason == Reason.INSUFFICIENT_CAPACITY]
    if short:
        message = f"{len(short)} without room; {short[0].node}: {short[0].message}"
        return False, Reason.INSUFFICIENT_CAPACITY, message
    for before in observed.artifact.status.conditions:
        lacked = before.status is ConditionStatus.FALSE and facts.trying_again
        if before.type == ConditionType.CAPACITY_AVAILABLE and lacked:
            return False, Reason.INSUFFICIENT_CAPACITY, before.message
    return True, Reason.CAPACITY_AVAILABLE, "no node is known to lack room"


def _verdicts(facts: Facts) -> Verdicts:
    trouble = facts.trouble
    chosen = next(reason for holds, reason in READY_RULES if holds(facts))
    cause = trouble if chosen is None else None
    reason = cause.reason if cause else chosen or Reason.PREWARM_FAILED
    message = cause.message if cause else _MESSAGES[reason](facts)
    degraded = (
        (True, trouble.reason, trouble.message) if trouble else (False, reason, "nothing is wrong")
    )
    return {
        ConditionType.READY: (facts.all_ready, reason, message),
        ConditionType.PROGRESSING: (facts.at_work and not facts.all_ready, reason, message),
        ConditionType.DEGRADED: degraded,
    }


_MESSAGES: dict[Reason, Callable[[Facts], str]] = {
    Reason.ALL_NODES_READY: lambda facts: f"all {facts.desired} nodes hold every shard",
    Reason.NO_MATCHING_NODE: lambda _facts: "no node matches the placement and can take Jobs",
    Reason.SUSPENDED: lambda facts: f"{facts.ready} of {facts.desired} nodes; suspended",
    Reason.AGENT_NOT_REPORTING: lambda facts: f"{facts.silent} agents do not report",
    Reason.CANARY: lambda facts: (
        f"a first node fixes the keys of {facts.unfixed} shards{_latest(facts)}"
    ),
    Reason.ROLLING_OUT: lambda facts: (
        f"{facts.ready} of {facts.desired} nodes hold every shard{_latest(facts)}"
    ),
}


def _latest(facts: Facts) -> str:
    first = next(iter(facts.failures), None)
    return f"; {first.reason} on {first.node}: {first.message}" if first else ""


def conditions(observed: Observation, verdicts: Verdicts) -> list[Condition]:
    """Conditions whose transition time moves only with their status."""
    before = {each.type: each for each in observed.artifact.status.conditions}
    result = []
    for kind, (holds, reason, message) in verdicts.items():
        status = ConditionStatus.TRUE if holds else ConditionStatus.FALSE
        old = before.get(kind)
        same = old is not None and old.status is status
        result.append(
            Condition(
                type=kind,
                status=status,
                reason=reason,
                message=message[:_MESSAGE_LIMIT],
                last_transition_time=old.last_transition_time
                if same and old
                else str(format_time(observed.now)),
                observed_generation=observed.artifact.metadata.generation,
            )
        )
    return result


def format_time(moment: datetime | None) -> str | None:
    """RFC 3339 in whole seconds, as Kubernetes writes it."""
    return None if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def humanised(size: int) -> str:
    """Bytes for people: `512B`, `86.7Mi`, `61.7Gi`."""
    if size < 1024:
        return f"{size}B"
    amount, unit = float(size), ""
    for unit in ("Ki", "Mi", "Gi", "Ti", "Pi"):  # noqa: B007 - the last one tried is the answer
        amount /= 1024
        if amount < 1024:
            break
    return f"{amount:.1f}{unit}"
