"""How far each node is with one shard: two facts and a table.

A fact about the bytes (Holding), a fact about the newest Job (Attempt), and PHASES, which says what
the pair means. What a phase allows is decided in `schedule`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum, auto

from weightlease.api.weight_artifact import ShardStatus, WeightArtifactSpec
from weightlease.api.weight_node import HeldArtifact, HeldState
from weightlease.reasons import Reason
from weightlease_operator.observation import (
    AgentView,
    JobState,
    JobView,
    Observation,
    Outcome,
    Problem,
)
from weightlease_operator.placement import NodeState, is_reporting
from weightlease_operator.retry import retry_at


class Holding(Enum):
    """What the node's inventory says about the shard."""

    ABSENT = auto()
    HELD = auto()
    DIFFERENT = auto()


class Attempt(Enum):
    """What the newest Job for this node and shard came to."""

    NONE = auto()
    ACTIVE = auto()
    CONFIRMING = auto()
    RETRY_LATER = auto()
    RETRY_DUE = auto()
    EXHAUSTED = auto()
    FINAL = auto()


class Phase(Enum):
    """What that means for the node."""

    READY = auto()
    WORKING = auto()
    PENDING = auto()
    WAITING = auto()
    FAILED = auto()


_ABSENT = {
    Attempt.NONE: Phase.PENDING,
    Attempt.ACTIVE: Phase.WORKING,
    Attempt.CONFIRMING: Phase.WORKING,
    Attempt.RETRY_LATER: Phase.WAITING,
    Attempt.RETRY_DUE: Phase.PENDING,
    Attempt.EXHAUSTED: Phase.FAILED,
    Attempt.FINAL: Phase.FAILED,
}
PHASES: dict[tuple[Holding, Attempt], Phase] = {
    **{(Holding.ABSENT, attempt): phase for attempt, phase in _ABSENT.items()},
    **{(Holding.HELD, attempt): Phase.READY for attempt in Attempt},
    **{(Holding.DIFFERENT, attempt): Phase.FAILED for attempt in Attempt},
}
GOOD_ENDS = frozenset({Reason.PUBLISHED, Reason.ALREADY_PUBLISHED})


@dataclass(frozen=True, slots=True)
class NodeShard:
    """One shard on one node; `attempts` counts the Jobs that were made, `job` is the newest."""

    node: str
    component: str
    state: NodeState
    phase: Phase
    attempt: Attempt
    attempts: int = 0
    job: JobView | None = None
    problem: Problem | None = None
    retry_at: datetime | None = None


def find_held(
    agent: AgentView | None, namespace: str, spec: WeightArtifactSpec, key: str
) -> HeldArtifact | None:
    """The published artifact with this key on the node, in the spec's storage class."""
    for held in agent.inventory if agent else ():
        if (held.namespace, held.storage_class, held.key, held.state) == (
            namespace,
            spec.storage_class,
            key,
            HeldState.READY,
        ):
            return held
    return None


def fixed_by_canary(
    observed: Observation, spec: WeightArtifactSpec, component: str, jobs: Iterable[JobView]
) -> ShardStatus | None:
    """The shard that a Job named and its node's agent confirms; None while there is none."""
    namespace = observed.artifact.metadata.namespace
    ended = [job for job in jobs if job.component == component and _ended_well(job)]
    for job in sorted(ended, key=lambda each: (each.finished_at or observed.now, each.name)):
        said = job.outcome
        if said is None:
            continue
        held = find_held(observed.agents.get(job.node), namespace, spec, said.key)
        if held is None or not held.manifest_sha256:
            continue
        if said.manifest_sha256 in ("", held.manifest_sha256):
            return ShardStatus(
                component=component,
                key=said.key,
                manifest_sha256=held.manifest_sha256,
                bytes=held.bytes,
                canary_node=job.node,
            )
    return None


def node_shard(
    observed: Observation,
    spec: WeightArtifactSpec,
    component: str,
    shard: ShardStatus | None,
    node: tuple[str, NodeState],
    jobs: Sequence[JobView],
) -> NodeShard:
    """Evaluate one shard on one node; `jobs` are the current ones for the pair."""
    name, state = node
    newest = max(jobs, key=lambda job: job.attempt, default=None)
    outcome = _failure(observed, newest, shard) if newest else None
    due = _due(observed, newest) if newest and outcome else None
    attempt = _attempt(observed, spec, newest, outcome, due)
    holding, problem = _holding(observed, spec, shard, name)
    if problem is None and outcome is not None:
        problem = Problem(outcome.reason, outcome.message)
    if problem is None and newest is not None:
        problem = newest.blocked
    return NodeShard(
        node=name,
        component=component,
        state=state,
        phase=PHASES[holding, attempt],
        attempt=attempt,
        attempts=newest.attempt + 1 if newest else 0,
        job=newest,
        problem=problem,
        retry_at=due if attempt is Attempt.RETRY_LATER else None,
    )


def _ended_well(job: JobView) -> bool:
    return (
        job.state is JobState.SUCCEEDED
        and job.outcome is not None
        and job.outcome.reason in GOOD_ENDS
    )


def _holding(
    observed: Observation, spec: WeightArtifactSpec, shard: ShardStatus | None, node: str
) -> tuple[Holding, Problem | None]:
    agent = observed.agents.get(node)
    grace = timedelta(seconds=observed.settings.agent_grace_seconds)
    if shard is None or not is_reporting(agent, now=observed.now, grace=grace):
        return Holding.ABSENT, None
    held = find_held(agent, observed.artifact.metadata.namespace, spec, shard.key)
    if held is None:
        return Holding.ABSENT, None
    if held.manifest_sha256 == shard.manifest_sha256:
        return Holding.HELD, None
    message = (
        f"the node holds manifest {held.manifest_sha256[:12]} under the same key, "
        f"the canary made {shard.manifest_sha256[:12]}"
    )
    return Holding.DIFFERENT, Problem(Reason.CONTENT_MISMATCH, message)


def _failure(observed: Observation, job: JobView, shard: ShardStatus | None) -> Outcome | None:
    """How the Job failed, one that only looks well included; None while it may still be well."""
    said = job.outcome
    if job.state is JobState.ACTIVE or said is None:
        return None
    if not _ended_well(job):
        return said
    if shard is not None and said.key != shard.key:
        message = f"made key {said.key[:12]}, the canary made {shard.key[:12]}"
        return replace(said, reason=Reason.IDENTITY_MISMATCH, message=message, retryable=False)
    grace = timedelta(seconds=observed.settings.confirm_grace_seconds)
    if job.finished_at is None or observed.now - job.finished_at < grace:
        return None
    message = "the Job ended well, but the node's agent does not list the artifact"
    return Outcome(Reason.PUBLICATION_FAILED, message, retryable=True)


def _due(observed: Observation, job: JobView) -> datetime:
    return retry_at(job.finished_at or observed.now, job.attempt, observed.settings)


def _attempt(
    observed: Observation,
    spec: WeightArtifactSpec,
    job: JobView | None,
    outcome: Outcome | None,
    due: datetime | None,
) -> Attempt:
    if job is None:
        return Attempt.NONE
    if outcome is None or due is None:
        return Attempt.ACTIVE if job.state is JobState.ACTIVE else Attempt.CONFIRMING
    if not outcome.retryable:
        return Attempt.FINAL
    if job.attempt >= spec.rollout.backoff_limit:
        return Attempt.EXHAUSTED
    return Attempt.RETRY_DUE if observed.now >= due else Attempt.RETRY_LATER
