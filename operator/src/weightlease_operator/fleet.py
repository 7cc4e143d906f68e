"""Everything the operator knows of the cluster, and the observation of one artifact cut from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from weightlease.api.weight_producer import WeightProducerSpec
from weightlease_operator.cache import Cache
from weightlease_operator.job_outcome import job_view
from weightlease_operator.kinds import AGENTS, ARTIFACTS, JOBS, NODES, PODS, PRODUCERS, Kind
from weightlease_operator.observation import (
    AgentView,
    ArtifactView,
    ClaimView,
    JobView,
    NodeView,
    Observation,
    Sample,
)
from weightlease_operator.settings import PlanSettings
from weightlease_operator.views import (
    JobRecord,
    PodRecord,
    agent_view,
    artifact_view,
    job_record,
    node_view,
    pod_record,
    producer_view,
)


@dataclass(slots=True)
class Fleet:
    """One cache per watched kind."""

    artifacts: Cache[ArtifactView] = field(default_factory=lambda: Cache(artifact_view))
    producers: Cache[WeightProducerSpec] = field(default_factory=lambda: Cache(producer_view))
    agents: Cache[AgentView] = field(default_factory=lambda: Cache(agent_view))
    nodes: Cache[NodeView] = field(default_factory=lambda: Cache(node_view))
    jobs: Cache[JobRecord] = field(
        default_factory=lambda: Cache(job_record, lambda job: job.artifact_uid)
    )
    pods: Cache[PodRecord] = field(
        default_factory=lambda: Cache(pod_record, lambda pod: pod.artifact_uid)
    )

    def cache(self, kind: Kind) -> Cache[Any]:
        caches: dict[Kind, Cache[Any]] = {
            ARTIFACTS: self.artifacts,
            PRODUCERS: self.producers,
            AGENTS: self.agents,
            NODES: self.nodes,
            JOBS: self.jobs,
            PODS: self.pods,
        }
        return caches[kind]

    def jobs_of(self, uid: str) -> tuple[JobView, ...]:
        """The Jobs of one artifact, each with what its pods tell."""
        pods: dict[str, list[PodRecord]] = {}
        for pod in self.pods.select(uid):
            pods.setdefault(pod.job, []).append(pod)
        return tuple(job_view(job, pods.get(job.name, ())) for job in self.jobs.select(uid))

    def observe(
        self,
        artifact: ArtifactView,
        *,
        now: datetime,
        settings: PlanSettings,
        claim: ClaimView | None = None,
        namespace_terminating: bool = False,
        refused: str = "",
        sample: Sample | None = None,
    ) -> Observation:
        name = artifact.spec.producer_ref.name if artifact.spec else ""
        return Observation(
            artifact=artifact,
            producer=self.producers.get("", name),
            nodes={node.name: node for _, node in self.nodes.items()},
            agents={agent.name: agent for _, agent in self.agents.items()},
            jobs=self.jobs_of(artifact.metadata.uid),
            now=now,
            settings=settings,
            claim=claim,
            namespace_terminating=namespace_terminating,
            refused=refused,
            sample=sample,
        )
