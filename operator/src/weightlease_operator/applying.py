"""Turn a plan into calls, in the order that `plans` states.

Each answer goes into the caches at once, so that the next pass sees it before the watch does. A
name that is taken counts as done when it is ours; an object that is gone counts as deleted.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Protocol

from weightlease.api.weight_node import WantedArtifact
from weightlease.names import FINALIZER, LABEL_ARTIFACT_UID
from weightlease_operator.api_errors import Conflict, NotFound, Refused
from weightlease_operator.entries import replaced
from weightlease_operator.fleet import Fleet
from weightlease_operator.jobs import build_job
from weightlease_operator.kinds import AGENTS, ARTIFACTS, JOBS, Kind
from weightlease_operator.merge_patch import merge_patch
from weightlease_operator.metrics import Metrics
from weightlease_operator.observation import AgentView, ArtifactView, Observation
from weightlease_operator.plans import FinalizerAction, Plan, PlannedEvent, Start
from weightlease_operator.settings import JobSettings
from weightlease_operator.views import agent_view

_ATTEMPTS = 5
# writes of one artifact; artifacts are worked on side by side too
_AT_ONCE = 4

Json = dict[str, Any]


class Api(Protocol):
    """What of the gateway is needed here."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Json: ...
    async def find(self, kind: Kind, namespace: str, selector: str) -> list[Json]: ...
    async def create(self, kind: Kind, namespace: str, body: Mapping[str, Any]) -> Json: ...
    async def patch(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        body: Mapping[str, Any],
        *,
        subresource: str = "",
    ) -> Json: ...
    async def delete(self, kind: Kind, namespace: str, name: str) -> None: ...


class Recorder(Protocol):
    """Tells people what happened to an artifact."""

    async def record(self, artifact: ArtifactView, event: PlannedEvent) -> None: ...


class JobRefused(Exception):
    """The API server refuses Jobs of this artifact: a quota, an admission policy, a wrong name."""


class Applier:
    """Applies plans; knows no decisions."""

    def __init__(
        self, api: Api, fleet: Fleet, recorder: Recorder, settings: JobSettings, metrics: Metrics
    ) -> None:
        self._api, self._fleet, self._recorder = api, fleet, recorder
        self._settings, self._metrics = settings, metrics
        # artifacts are reconciled side by side; without it they would conflict with each other
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def apply(self, observed: Observation, plan: Plan) -> None:
        """Raises JobRefused, and the ApiErrors of the gateway; applying again is safe."""
        artifact = observed.artifact
        namespace, name = artifact.metadata.namespace, artifact.metadata.name
        await _side_by_side(
            self.write_entries(observed.agents[node], namespace, name, own)
            for node, own in plan.entries.items()
        )
        await _side_by_side(self._start(observed, start) for start in plan.start)
        if plan.status is not None:
            await self._write_status(artifact, plan)
        await _side_by_side(self._delete_job(namespace, job) for job in plan.delete)
        for event in plan.events:
            await self._recorder.record(artifact, event)
        if plan.finalizer is not FinalizerAction.KEEP:
            await self._write_finalizer(artifact, plan.finalizer)

    async def write_entries(
        self, agent: AgentView, namespace: str, name: str, own: tuple[WantedArtifact, ...]
    ) -> None:
        """Replace one artifact's entries in the version of the spec that was read, or read again.

        A list computed from an older version could drop what another artifact has added since,
        and the agent would clean those bytes.
        """
        async with self._locks[agent.name]:
            current = self._fleet.agents.get("", agent.name)
            await self._replace_entries(current or agent, namespace, name, own)

    async def _replace_entries(
        self, agent: AgentView, namespace: str, name: str, own: tuple[WantedArtifact, ...]
    ) -> None:
        for _ in range(_ATTEMPTS):
            entries = replaced(agent.entries, namespace, name, own)
            body = {
                "metadata": {"resourceVersion": agent.resource_version, "uid": agent.uid},
                "spec": {"artifacts": [entry.to_json() for entry in entries]},
            }
            try:
                raw = await self._api.patch(AGENTS, "", agent.name, body)
            except Conflict:
                raw = await self._api.get(AGENTS, "", agent.name)
                agent = agent_view(raw)
                self._fleet.agents.put(raw)
            except NotFound:
                self._fleet.agents.forget("", agent.name)
                return
            else:
                self._fleet.agents.put(raw)
                return
        raise Conflict(f"WeightNode {agent.name} changed {_ATTEMPTS} times while it was written")

    async def _start(self, observed: Observation, start: Start) -> None:
        artifact, producer = observed.artifact, observed.producer
        if artifact.spec is None or producer is None:
            raise ValueError("a Job was planned without a spec or a producer")
        body = build_job(start, artifact.metadata, artifact.spec, producer, self._settings)
        namespace = artifact.metadata.namespace
        try:
            raw = await self._api.create(JOBS, namespace, body)
        except Conflict:
            raw = await self._api.get(JOBS, namespace, start.name)
            _require_ours(raw, artifact)
        except Refused as refused:
            raise JobRefused(str(refused)) from refused
        else:
            self._metrics.jobs_created.inc()
        self._fleet.jobs.put(raw)

    async def _write_status(self, artifact: ArtifactView, plan: Plan) -> None:
        if plan.status is None:
            return
        metadata = artifact.metadata
        body = {
            "metadata": {"resourceVersion": metadata.resource_version},
            "status": merge_patch(artifact.status.to_json(), plan.status.to_json()),
        }
        try:
            raw = await self._api.patch(
                ARTIFACTS, metadata.namespace, metadata.name, body, subresource="status"
            )
        except NotFound:
            self._fleet.artifacts.forget(metadata.namespace, metadata.name)
            return
        self._fleet.artifacts.put(raw)
        known = {(each.node, each.component, each.attempts) for each in artifact.status.failures}
        for failure in plan.status.failures:
            if (failure.node, failure.component, failure.attempts) not in known:
                self._metrics.job_failures.labels(reason=failure.reason).inc()

    async def _delete_job(self, namespace: str, name: str) -> None:
        try:
            await self._api.delete(JOBS, namespace, name)
        except NotFound:
            self._fleet.jobs.forget(namespace, name)

    async def _write_finalizer(self, artifact: ArtifactView, action: FinalizerAction) -> None:
        """Ours comes or goes; the others stay as they are in the version that was read."""
        current = self._fleet.artifacts.get(artifact.metadata.namespace, artifact.metadata.name)
        metadata = (current or artifact).metadata
        others = [each for each in metadata.finalizers if each != FINALIZER]
        wanted = [*others, FINALIZER] if action is FinalizerAction.ADD else others
        body = {
            "metadata": {
                "resourceVersion": metadata.resource_version,
                "uid": metadata.uid,
                "finalizers": wanted,
            }
        }
        try:
            raw = await self._api.patch(ARTIFACTS, metadata.namespace, metadata.name, body)
        except NotFound:
            self._fleet.artifacts.forget(metadata.namespace, metadata.name)
            return
        self._fleet.artifacts.put(raw)


async def _side_by_side(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """So many at once; raises the first failure when all have ended."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(call: Coroutine[Any, Any, None]) -> None:
        async with turns:
            await call

    for ended in await asyncio.gather(*map(one, calls), return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended


def _require_ours(raw: Mapping[str, Any], artifact: ArtifactView) -> None:
    labels = raw["metadata"].get("labels") or {}
    if labels.get(LABEL_ARTIFACT_UID) != artifact.metadata.uid:
        name = raw["metadata"]["name"]
        raise JobRefused(f"a Job {name} that is not ours is in the way; delete it")
    if "deletionTimestamp" in raw["metadata"]:
        raise Conflict(f"Job {raw['metadata']['name']} of the same name is still being deleted")
