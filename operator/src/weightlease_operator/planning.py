"""`plan`: from everything observed to everything to do. Same observation, same plan.

The order of a pass: which content is asked for → which shards the canary has fixed → how far each
node is → whether the canary is disputed → which Jobs start → entries, Jobs to delete, status.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from weightlease.api.weight_artifact import (
    ConditionType,
    ShardStatus,
    WeightArtifactSpec,
    WeightArtifactStatus,
)
from weightlease.api.weight_producer import WeightProducerSpec
from weightlease.names import ANNOTATION_RETRY, FINALIZER, hashed_name
from weightlease.reasons import Reason
from weightlease_operator.checks import first_problem, spec_problem
from weightlease_operator.content import Content, content_of
from weightlease_operator.deletion import plan_deletion
from weightlease_operator.dispute import Dispute, find_disputes
from weightlease_operator.entries import changed_entries, wanted_entries
from weightlease_operator.observation import JobState, JobView, Observation, Problem
from weightlease_operator.placement import NodeState, node_state
from weightlease_operator.plans import FinalizerAction, Plan, PlannedEvent, Start
from weightlease_operator.progress import progress_of
from weightlease_operator.schedule import choose
from weightlease_operator.shards import NodeShard, Phase, fixed_by_canary, node_shard
from weightlease_operator.status import conditions, full_status, tally


def plan(observed: Observation) -> Plan:
    """Decide; never raises for anything that a user wrote."""
    if observed.artifact.metadata.deletion_timestamp is not None:
        return plan_deletion(observed)
    if FINALIZER not in observed.artifact.metadata.finalizers:
        # First of all, so that nothing of the artifact can outlive it unseen.
        return Plan(finalizer=FinalizerAction.ADD)
    spec = observed.artifact.spec
    if spec is None:
        return _plan_invalid(observed, spec_problem(observed))
    return _plan_rollout(_pass(observed, spec))


@dataclass(frozen=True, slots=True)
class _Pass:
    """What one pass has found out."""

    observed: Observation
    spec: WeightArtifactSpec
    content: Content
    problem: Problem | None
    states: Mapping[str, NodeState]
    jobs: tuple[JobView, ...]
    shards: Mapping[str, ShardStatus]
    rows: tuple[NodeShard, ...]
    disputes: tuple[Dispute, ...]

    @property
    def retry(self) -> str:
        return _retry(self.observed)


def _retry(observed: Observation) -> str:
    return observed.artifact.metadata.annotations.get(ANNOTATION_RETRY, "")[:64]


def _plan_invalid(observed: Observation, problem: Problem) -> Plan:
    verdict = (False, problem.reason, problem.message)
    old = observed.artifact.status
    update = {
        "observed_generation": observed.artifact.metadata.generation,
        "conditions": conditions(
            observed,
            {
                ConditionType.READY: verdict,
                ConditionType.PROGRESSING: verdict,
                ConditionType.DEGRADED: (True, problem.reason, problem.message),
            },
        ),
    }
    status = old.model_copy(update=update)
    return Plan(status=_if_changed(old, status), events=_events(old, status))


def _pass(observed: Observation, spec: WeightArtifactSpec) -> _Pass:
    content = _content(observed, spec, observed.producer)
    grace = timedelta(seconds=observed.settings.agent_grace_seconds)
    states = {
        name: node_state(
            spec.placement, node, observed.agents.get(name), now=observed.now, grace=grace
        )
        for name, node in sorted(observed.nodes.items())
    }
    jobs = tuple(job for job in observed.jobs if _is_current(observed, job, content))
    shards = _shards(observed, spec, content, jobs)
    rows = _rows(observed, spec, shards, states, jobs)
    problem = first_problem(observed, spec)
    can_start = problem is None and not spec.rollout.suspend
    disputes = find_disputes(shards, rows) if can_start else ()
    for dispute in disputes:
        del shards[dispute.component]
    if disputes:
        disputed = {dispute.component for dispute in disputes}
        jobs = tuple(job for job in jobs if job.component not in disputed)
        rows = _rows(observed, spec, shards, states, jobs)
    return _Pass(observed, spec, content, problem, states, jobs, shards, rows, disputes)


def _content(
    observed: Observation, spec: WeightArtifactSpec, producer: WeightProducerSpec | None
) -> Content:
    recorded = observed.artifact.status.content
    generation = observed.artifact.metadata.generation
    if producer is None:
        # Nothing new can be made without it; what is there stays known.
        return Content.parse(recorded) or Content("unknown", generation)
    return content_of(spec, producer.producer, generation=generation, recorded=recorded)


def _is_current(observed: Observation, job: JobView, content: Content) -> bool:
    """A new retry value forgets failures; what runs or succeeded goes on counting.

    What was done on a node says nothing of another one that came back under its name.
    """
    node = observed.nodes.get(job.node)
    same_node = node is None or job.node_uid in ("", node.uid)
    counts = job.retry == _retry(observed) or job.state is not JobState.FAILED
    return job.content == str(content) and same_node and counts


def _shards(
    observed: Observation, spec: WeightArtifactSpec, content: Content, jobs: Sequence[JobView]
) -> dict[str, ShardStatus]:
    recorded = observed.artifact.status
    kept = recorded.shards if recorded.content == str(content) else ()
    shards = {shard.component: shard for shard in kept}
    for component in spec.components:
        if component.name not in shards:
            fixed = fixed_by_canary(observed, spec, component.name, jobs)
            if fixed is not None:
                shards[component.name] = fixed
    return shards


def _rows(
    observed: Observation,
    spec: WeightArtifactSpec,
    shards: Mapping[str, ShardStatus],
    states: Mapping[str, NodeState],
    jobs: Sequence[JobView],
) -> tuple[NodeShard, ...]:
    by_pair: dict[tuple[str, str], list[JobView]] = {}
    for job in jobs:
        by_pair.setdefault((job.node, job.component), []).append(job)
    return tuple(
        node_shard(
            observed,
            spec,
            component.name,
            shards.get(component.name),
            node,
            by_pair.get((node[0], component.name), ()),
        )
        for node in states.items()
        if node[1] is not NodeState.UNMATCHED
        for component in spec.components
    )


def _plan_rollout(found: _Pass) -> Plan:
    observed, spec = found.observed, found.spec
    suspended = spec.rollout.suspend
    starts: tuple[Start, ...] = ()
    if not suspended and found.problem is None:
        starts = _starts(found)
    wanted = wanted_entries(
        observed.artifact,
        spec,
        found.content,
        observed.agents,
        found.shards,
        found.rows,
        starts,
    )
    rows = _with_starts(found.rows, starts)
    facts = tally(
        rows,
        found.shards,
        len(spec.components),
        suspended=suspended,
        problem=found.problem,
    )
    progress, sample = progress_of(observed, found.shards, rows)
    ordered = [found.shards[each.name] for each in spec.components if each.name in found.shards]
    status = full_status(observed, facts, ordered, str(found.content), progress)
    old = observed.artifact.status
    return Plan(
        entries=changed_entries(observed.artifact, observed.agents, found.states, wanted),
        start=starts,
        delete=_finished_with(found, starts),
        status=_if_changed(old, status),
        events=(*_dispute_events(found.disputes), *_events(old, status)),
        wake_at=_wake_at(found),
        sample=sample,
    )


def _with_starts(rows: Sequence[NodeShard], starts: Sequence[Start]) -> list[NodeShard]:
    """The rows as they are once these Jobs exist: the status is written after them."""
    begun = {(start.node, start.component): start for start in starts}
    return [
        replace(row, phase=Phase.WORKING, problem=None, retry_at=None, attempts=start.attempt + 1)
        if (start := begun.get((row.node, row.component)))
        else row
        for row in rows
    ]


def _starts(found: _Pass) -> tuple[Start, ...]:
    metadata, content = found.observed.artifact.metadata, str(found.content)
    preferred = {dispute.component: dispute for dispute in found.disputes}
    starts = []
    for row in choose(found.spec, found.shards, found.rows, found.observed.claim):
        shard = found.shards.get(row.component)
        dispute = preferred.get(row.component)
        node = dispute.agreeing[0] if dispute else row.node
        attempt = dispute.next_attempt if dispute else row.attempts
        uid = found.observed.nodes[node].uid
        parts = (metadata.uid, content, found.retry, row.component, node, uid, str(attempt))
        starts.append(
            Start(
                name=hashed_name(metadata.name, *parts),
                component=row.component,
                node=node,
                attempt=attempt,
                content=content,
                retry=found.retry,
                key=shard.key if shard else "",
                manifest_sha256=shard.manifest_sha256 if shard else "",
                node_uid=uid,
            )
        )
    return tuple(starts)


def _finished_with(found: _Pass, starts: Sequence[Start]) -> tuple[str, ...]:
    """Jobs that nothing depends on any more."""
    current = {job.name for job in found.jobs}
    starting = {(start.node, start.component) for start in starts}
    newest = {
        row.job.name
        for row in found.rows
        if row.job is not None and (row.node, row.component) not in starting
    }
    settled = {
        row.job.name
        for row in found.rows
        if row.phase is Phase.READY and row.job and row.job.state is not JobState.ACTIVE
    }
    return tuple(
        job.name
        for job in found.observed.jobs
        if not job.deleting
        and (job.name not in current or job.name not in newest or job.name in settled)
    )


def _wake_at(found: _Pass) -> datetime | None:
    """When a retry falls due, a confirmation or a start runs out, or an agent becomes silent."""
    settings, observed = found.observed.settings, found.observed
    moments = [row.retry_at for row in found.rows if row.retry_at is not None]
    confirm = timedelta(seconds=settings.confirm_grace_seconds)
    moments += [
        job.finished_at + confirm
        for job in found.jobs
        if job.state is JobState.SUCCEEDED and job.finished_at is not None
    ]
    start = timedelta(seconds=settings.start_grace_seconds)
    for job in found.jobs:
        if job.starting is not None:
            moments += [job.starting.since + start, observed.now + start]
    grace = timedelta(seconds=settings.agent_grace_seconds + 1)
    moments += [
        agent.reported_at + grace
        for name, agent in observed.agents.items()
        if name in found.states and agent.reported_at is not None
    ]
    return min((moment for moment in moments if moment > observed.now), default=None)


def _if_changed(
    old: WeightArtifactStatus, new: WeightArtifactStatus
) -> WeightArtifactStatus | None:
    return None if old.to_json() == new.to_json() else new


def _events(old: WeightArtifactStatus, new: WeightArtifactStatus) -> tuple[PlannedEvent, ...]:
    """What a person should hear of: another reason for Ready, and failures that are new."""
    before = {condition.type: condition for condition in old.conditions}
    after = {condition.type: condition for condition in new.conditions}
    ready, degraded = after[ConditionType.READY], after[ConditionType.DEGRADED]
    was = before.get(ConditionType.READY)
    events = []
    if was is None or was.reason != ready.reason:
        warning = degraded.status == "True" and degraded.reason == ready.reason
        events.append(PlannedEvent(Reason(ready.reason), ready.message, warning))
    known = {(each.node, each.component, each.reason, each.attempts) for each in old.failures}
    for failure in new.failures:
        if (failure.node, failure.component, failure.reason, failure.attempts) not in known:
            text = f"{failure.component} on {failure.node}: {failure.message}"
            events.append(PlannedEvent(Reason(failure.reason), text, warning=True))
    return tuple(events)


def _dispute_events(disputes: Sequence[Dispute]) -> list[PlannedEvent]:
    return [
        PlannedEvent(Reason.CANARY_DISPUTED, dispute.message, warning=True) for dispute in disputes
    ]
