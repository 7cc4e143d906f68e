"""A fleet in memory for tests of the planner: it applies plans and plays agents and Jobs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from weightlease.api.base import ObjectMeta
from weightlease.api.weight_artifact import WeightArtifactSpec, WeightArtifactStatus
from weightlease.api.weight_node import HeldArtifact, HeldState, LeaseHolder
from weightlease.api.weight_producer import WeightProducerSpec
from weightlease.names import ANNOTATION_RETRY, FINALIZER, StorageClass
from weightlease.reasons import EXIT_STATUS, Reason
from weightlease_operator.entries import replaced
from weightlease_operator.observation import (
    AgentView,
    ArtifactView,
    ClaimView,
    JobState,
    JobView,
    NodeView,
    Observation,
    Outcome,
    Sample,
)
from weightlease_operator.planning import plan
from weightlease_operator.plans import FinalizerAction, Plan, PlannedEvent
from weightlease_operator.settings import PlanSettings

START = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
KEY, OTHER_KEY = "a" * 64, "b" * 64
MANIFEST, OTHER_MANIFEST = "c" * 64, "d" * 64
SIZE = 90_900_000
HUB = {"huggingFace": {"repo": "org/model", "revision": "0" * 40}}

PRODUCER = WeightProducerSpec.model_validate(
    {
        "image": "example/producer:1",
        "producer": {
            "id": "snapshot",
            "version": "1",
            "implementationFingerprint": "snapshot-1",
            "manifestSchema": "1",
            "restorerSchema": "1",
        },
        "sources": ["huggingFace", "persistentVolumeClaim", "hostPath"],
        "representations": ["canonical"],
    }
)


class World:
    """One artifact and the nodes it may go to."""

    def __init__(self, nodes: int = 3, spec: dict[str, Any] | None = None) -> None:
        self.now = START
        self.settings = PlanSettings()
        self.producer: WeightProducerSpec | None = PRODUCER
        self.metadata = ObjectMeta(
            name="model", namespace="team", uid="uid-1", generation=1, finalizers=[FINALIZER]
        )
        self.raw_spec: dict[str, Any] = {"source": HUB} | (spec or {})
        self.status = WeightArtifactStatus()
        self.nodes: dict[str, NodeView] = {}
        self.agents: dict[str, AgentView] = {}
        self.jobs: dict[str, JobView] = {}
        self.claim: ClaimView | None = None
        self.terminating = False
        self.refused = ""
        self.sample: Sample | None = None
        self.events: list[PlannedEvent] = []
        self.released = False
        for number in range(nodes):
            self.add_node(f"node-{number}")

    # ---- the operator's side ----

    def observe(self) -> Observation:
        return Observation(
            artifact=ArtifactView(
                self.metadata, WeightArtifactSpec.model_validate(self.raw_spec), self.status
            ),
            producer=self.producer,
            nodes=dict(self.nodes),
            agents=dict(self.agents),
            jobs=tuple(self.jobs.values()),
            now=self.now,
            settings=self.settings,
            claim=self.claim,
            namespace_terminating=self.terminating,
            refused=self.refused,
            sample=self.sample,
        )

    def step(self) -> Plan:
        """Plan once and apply all of it."""
        decided = plan(self.observe())
        self.apply(decided)
        return decided

    def settle(self, limit: int = 10) -> None:
        """Plan until nothing is left to write."""
        for _ in range(limit):
            if not self.step().writes:
                return
        raise AssertionError(f"the plan does not settle: {plan(self.observe())}")

    def apply(self, decided: Plan) -> None:
        for node, own in decided.entries.items():
            agent = self.agents[node]
            entries = replaced(agent.entries, self.metadata.namespace, self.metadata.name, own)
            self.agents[node] = replace(agent, entries=entries, generation=agent.generation + 1)
        for start in decided.start:
            assert start.name not in self.jobs
            entry = next(
                e for e in self.agents[start.node].entries if e.component == start.component
            )
            assert entry.job == start.name, "an agent would refuse a Job that no entry names"
            self.jobs[start.name] = JobView(
                name=start.name,
                component=start.component,
                node=start.node,
                attempt=start.attempt,
                content=start.content,
                retry=start.retry,
                node_uid=start.node_uid,
            )
        if decided.status is not None:
            self.status = decided.status
        for name in decided.delete:
            del self.jobs[name]
        self.events += decided.events
        self.sample = decided.sample
        self._apply_finalizer(decided.finalizer)

    def _apply_finalizer(self, action: FinalizerAction) -> None:
        if action is FinalizerAction.ADD:
            self.metadata = self.metadata.model_copy(update={"finalizers": [FINALIZER]})
        if action is FinalizerAction.REMOVE:
            self.metadata = self.metadata.model_copy(update={"finalizers": []})
            self.released = True

    # ---- everybody else's side ----

    def add_node(self, name: str, **changes: Any) -> None:
        self.nodes[name] = NodeView(name=name, uid=f"uid-{name}", **changes)
        self.agents[name] = AgentView(name=name, reported_at=self.now)

    def remove_node(self, name: str) -> None:
        del self.nodes[name], self.agents[name]

    def change_node(self, name: str, **changes: Any) -> None:
        self.nodes[name] = replace(self.nodes[name], **changes)

    def edit(self, **changes: Any) -> None:
        self.raw_spec = self.raw_spec | changes
        self.metadata = self.metadata.model_copy(
            update={"generation": self.metadata.generation + 1}
        )

    def annotate(self, name: str, value: str) -> None:
        annotations = self.metadata.annotations | {name: value}
        self.metadata = self.metadata.model_copy(update={"annotations": annotations})

    def retry(self, value: str) -> None:
        self.annotate(ANNOTATION_RETRY, value)

    def delete(self) -> None:
        self.metadata = self.metadata.model_copy(update={"deletion_timestamp": "now"})

    def report(self, *names: str) -> None:
        """These agents (all, when none is named) report again and have read their spec."""
        for name in names or tuple(self.agents):
            agent = self.agents[name]
            self.agents[name] = replace(
                agent, reported_at=self.now, observed_generation=agent.generation
            )

    def pass_time(self, seconds: float, *, silent: tuple[str, ...] = ()) -> None:
        self.now += timedelta(seconds=seconds)
        self.report(*[name for name in self.agents if name not in silent])

    def hold(
        self,
        node: str,
        key: str = KEY,
        manifest: str = MANIFEST,
        state: HeldState = HeldState.READY,
        *,
        component: str = "model",
        done: int = 0,
        leases: tuple[str, ...] = (),
    ) -> None:
        """The node's inventory lists this artifact."""
        held = HeldArtifact(
            namespace="team",
            storage_class=StorageClass.DISK,
            key=key,
            state=state,
            bytes=SIZE,
            bytes_done=done,
            manifest_sha256=manifest if state is HeldState.READY else "",
            wanted_id=f"team/model:{component}",
            leases=[LeaseHolder(holder=name, since="2026-11-30T12:00:00Z") for name in leases],
            lease_count=len(leases),
        )
        others = tuple(each for each in self.agents[node].inventory if each.key != key)
        self.agents[node] = replace(self.agents[node], inventory=(*others, held))

    def drop(self, node: str, key: str = KEY) -> None:
        left = tuple(each for each in self.agents[node].inventory if each.key != key)
        self.agents[node] = replace(self.agents[node], inventory=left)

    def clean(self) -> None:
        """Agents remove what no entry names and nobody leases, and report."""
        for agent in list(self.agents.values()):
            named = {entry.key for entry in agent.entries}
            kept = tuple(h for h in agent.inventory if h.key in named or h.lease_count)
            self.agents[agent.name] = replace(agent, inventory=kept)
        self.report()

    def active(self) -> list[JobView]:
        return [job for job in self.jobs.values() if job.state is JobState.ACTIVE]

    def working(self) -> list[str]:
        return sorted(job.node for job in self.active())

    def succeed(self, job: JobView, key: str = KEY, manifest: str = MANIFEST) -> None:
        """The Job publishes, and its node's agent says so."""
        outcome = Outcome(Reason.PUBLISHED, "published", False, key, manifest)
        self.jobs[job.name] = replace(
            job, state=JobState.SUCCEEDED, finished_at=self.now, outcome=outcome
        )
        self.hold(job.node, key, manifest, component=job.component)

    def fail(self, job: JobView, reason: Reason, key: str = "", manifest: str = "") -> None:
        status = EXIT_STATUS.get(reason)
        retryable = status.retryable if status else True
        outcome = Outcome(reason, f"failed by {reason}", retryable, key, manifest)
        self.jobs[job.name] = replace(
            job, state=JobState.FAILED, finished_at=self.now, outcome=outcome
        )

    def finish(self) -> None:
        """Every Job succeeds until the artifact is Ready."""
        for _ in range(50):
            self.settle()
            if not self.active():
                return
            for job in self.active():
                self.succeed(job)
        raise AssertionError("the rollout does not end")

    # ---- what a user sees ----

    def condition(self, kind: str) -> tuple[str, str]:
        found = next(each for each in self.status.conditions if each.type == kind)
        return str(found.status), found.reason

    @property
    def ready(self) -> tuple[str, str]:
        return self.condition("Ready")

    def entries(self) -> dict[str, str]:
        """Key by node, for the nodes that have an entry."""
        return {a.name: entry.key for a in self.agents.values() for entry in a.entries}
