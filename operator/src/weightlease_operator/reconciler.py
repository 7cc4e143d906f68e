"""One reconciliation: observe, plan, apply. What woke it plays no part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from weightlease.names import API_VERSION
from weightlease_operator.api_errors import Conflict, NotFound, Refused
from weightlease_operator.applying import Api, Applier, JobRefused
from weightlease_operator.cache import Key
from weightlease_operator.fleet import Fleet
from weightlease_operator.kinds import AGENTS, ARTIFACTS, CLAIMS, NAMESPACES
from weightlease_operator.mounts import Mounts
from weightlease_operator.observation import (
    AgentView,
    ArtifactView,
    ClaimView,
    NodeView,
    Observation,
    Sample,
)
from weightlease_operator.planning import plan
from weightlease_operator.settings import PlanSettings

_BELIEVED = timedelta(minutes=1)
_ONE_NODE_MODES = frozenset({"ReadWriteOnce", "ReadWriteOncePod"})


@dataclass(slots=True)
class Reconciler:
    """Reconciles artifacts and nodes; remembers nothing that it could not do without."""

    api: Api
    fleet: Fleet
    applier: Applier
    settings: PlanSettings
    clock: Callable[[], datetime]
    mounts: Mounts = field(init=False)
    _samples: dict[Key, Sample] = field(default_factory=dict)
    _lasting: dict[str, datetime] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mounts = Mounts(self.api)

    async def artifact(self, key: Key) -> float | None:
        """Reconcile one WeightArtifact; returns in how many seconds time alone changes the plan."""
        artifact = self.fleet.artifacts.get(*key)
        if artifact is None:
            self._samples.pop(key, None)
            return None
        observed = await self.mounts.explain(await self._observe(artifact))
        decided = plan(observed)
        try:
            await self.applier.apply(observed, decided)
        except JobRefused as refused:
            await self._tell_refusal(key, str(refused))
            raise
        if decided.sample is None:
            self._samples.pop(key, None)
        else:
            self._samples[key] = decided.sample
        if decided.writes:
            # What we wrote is in the cache already, so its watch event will wake nobody.
            return 0.0
        if decided.wake_at is None:
            return None
        return max(0.0, (decided.wake_at - self.clock()).total_seconds())

    async def node(self, name: str) -> float | None:
        """Every Node has a WeightNode, owned by it, without entries of artifacts that are gone."""
        node, agent = self.fleet.nodes.get("", name), self.fleet.agents.get("", name)
        if node is None:
            return None
        if agent is None:
            try:
                raw = await self.api.create(AGENTS, "", _weight_node(node))
            except Conflict:
                raw = await self.api.get(AGENTS, "", name)
            self.fleet.agents.put(raw)
            return None
        await self._drop_orphans(agent)
        return None

    async def _observe(self, artifact: ArtifactView, refused: str = "") -> Observation:
        metadata = artifact.metadata
        deleting = metadata.deletion_timestamp is not None
        return self.fleet.observe(
            artifact,
            claim=None if deleting else await self._claim(artifact),
            namespace_terminating=deleting and await self._is_terminating(metadata.namespace),
            now=self.clock(),
            settings=self.settings,
            refused=refused,
            sample=self._samples.get((metadata.namespace, metadata.name)),
        )

    async def _tell_refusal(self, key: Key, refused: str) -> None:
        """The status says why no Job comes; the queue tries again later."""
        artifact = self.fleet.artifacts.get(*key)
        if artifact is not None:
            observed = await self._observe(artifact, refused)
            await self.applier.apply(observed, plan(observed))

    async def _claim(self, artifact: ArtifactView) -> ClaimView | None:
        source = artifact.spec.source.persistent_volume_claim if artifact.spec else None
        if source is None:
            return None
        try:
            raw = await self.api.get(CLAIMS, artifact.metadata.namespace, source.claim_name)
        except NotFound:
            return ClaimView(exists=False)
        except Refused:  # not allowed to read claims: the pods will tell
            return None
        modes = set((raw.get("spec") or {}).get("accessModes") or ())
        return ClaimView(exists=True, one_node_only=bool(modes) and modes <= _ONE_NODE_MODES)

    async def _is_terminating(self, namespace: str) -> bool:
        try:
            raw: dict[str, Any] = await self.api.get(NAMESPACES, "", namespace)
        except NotFound:
            return True
        return "deletionTimestamp" in raw["metadata"]

    async def _drop_orphans(self, agent: AgentView) -> None:
        """Entries whose artifact lost its finalizer to somebody's hand, asked of the server.

        Retained ones go with their namespace.
        """
        known = set(self.fleet.artifacts.keys())
        retained = {(each.namespace, each.name): each.retained for each in agent.entries}
        for (namespace, name), stays in sorted(retained.items()):
            if (namespace, name) in known:
                continue
            there = self._namespace_lasts(namespace) if stays else self._is_there(namespace, name)
            if not await there:
                current = self.fleet.agents.get("", agent.name) or agent
                await self.applier.write_entries(current, namespace, name, ())

    async def _is_there(self, namespace: str, name: str) -> bool:
        try:
            await self.api.get(ARTIFACTS, namespace, name)
        except NotFound:
            return False
        return True

    async def _namespace_lasts(self, namespace: str) -> bool:
        """Believed for a while: every agent that reports would ask."""
        now = self.clock()
        if now - self._lasting.get(namespace, now - _BELIEVED) < _BELIEVED:
            return True
        if await self._is_terminating(namespace):
            self._lasting.pop(namespace, None)
            return False
        self._lasting[namespace] = now
        return True


def _weight_node(node: NodeView) -> dict[str, Any]:
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
    return {
        "apiVersion": API_VERSION,
        "kind": "WeightNode",
        "metadata": {"name": node.name, "ownerReferences": [owner]},
        "spec": {"artifacts": []},
    }
