"""From events to names: each event updates a cache and wakes those it may concern.

    an event about              wakes
    a WeightArtifact            itself
    a WeightProducer            the artifacts that name it
    a WeightNode                artifacts with an entry or bytes there, and those being deleted;
                                all, when its agent comes back; and the node itself
    a Node                      all artifacts, and the node itself
    a Job, or a pod of one      its artifact

An event that changes nothing in the view wakes nobody. Nothing else about an event counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

import structlog
from pydantic import ValidationError

from weightlease_operator.cache import Change, Key
from weightlease_operator.fleet import Fleet
from weightlease_operator.kinds import AGENTS, ARTIFACTS, JOBS, NODES, PODS, PRODUCERS, Kind
from weightlease_operator.observation import AgentView
from weightlease_operator.placement import is_reporting
from weightlease_operator.views import Raw

_log = structlog.get_logger(__name__)


class Intake:
    """`wake_artifact` and `wake_node` take names; both may be called often."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        wake_artifact: Callable[[Key], None],
        wake_node: Callable[[str], None],
        clock: Callable[[], datetime],
        grace: timedelta,
    ) -> None:
        self._fleet = fleet
        self._wake_artifact, self._wake_node = wake_artifact, wake_node
        self._clock, self._grace = clock, grace

    def event(self, kind: Kind, *, deleted: bool, raw: Raw) -> None:
        """One watch event."""
        cache = self._fleet.cache(kind)
        try:
            change = cache.remove(raw) if deleted else cache.put(raw)
        except (ValidationError, KeyError, TypeError, ValueError) as error:
            # What was known stays: for a WeightNode, acting on half an object could cost bytes.
            _log.error("an object was not understood", kind=kind.plural, error=str(error))
            return
        if change.visible:
            self._wake(kind, change)

    def listed(self, kind: Kind, raws: Iterable[Raw], version: str) -> None:
        """A whole list; wakes for what the watch had missed."""
        for change in self._fleet.cache(kind).replace(raws, version):
            self._wake(kind, change)

    def everything(self) -> None:
        """Wake every artifact and every node."""
        for key in self._fleet.artifacts.keys():  # noqa: SIM118 - a cache is no mapping
            self._wake_artifact(key)
        for _, name in self._fleet.nodes.keys():  # noqa: SIM118
            self._wake_node(name)

    def _wake(self, kind: Kind, change: Change[Any]) -> None:
        rules: dict[Kind, Callable[[Change[Any]], None]] = {
            ARTIFACTS: lambda each: self._wake_artifact(each.key),
            PRODUCERS: self._producer,
            AGENTS: self._agent,
            NODES: self._node,
            JOBS: self._job_or_pod,
            PODS: self._job_or_pod,
        }
        rules[kind](change)

    def _producer(self, change: Change[Any]) -> None:
        for key, artifact in self._fleet.artifacts.items():
            if artifact.spec and artifact.spec.producer_ref.name == change.key[1]:
                self._wake_artifact(key)

    def _node(self, change: Change[Any]) -> None:
        self._wake_node(change.key[1])
        for key in self._fleet.artifacts.keys():  # noqa: SIM118
            self._wake_artifact(key)

    def _agent(self, change: Change[AgentView]) -> None:
        before, after = change.before, change.after
        self._wake_node(change.key[1])
        if before is None or after is None or not self._was_reporting(before):
            keys = set(self._fleet.artifacts.keys())
        elif _but_time(before) == _but_time(after):
            return
        else:
            keys = _concerned(before) | _concerned(after) | self._deleting()
        for key in keys:
            self._wake_artifact(key)

    def _deleting(self) -> set[Key]:
        """They wait for agents to have read a spec that no longer names them."""
        return {
            key
            for key, artifact in self._fleet.artifacts.items()
            if artifact.metadata.deletion_timestamp is not None
        }

    def _was_reporting(self, agent: AgentView) -> bool:
        return is_reporting(agent, now=self._clock(), grace=self._grace)

    def _job_or_pod(self, change: Change[Any]) -> None:
        uids = {each.artifact_uid for each in (change.before, change.after) if each is not None}
        for key, artifact in self._fleet.artifacts.items():
            if artifact.metadata.uid in uids:
                self._wake_artifact(key)


def _but_time(agent: AgentView) -> tuple[object, ...]:
    return agent.entries, agent.inventory, agent.generation, agent.observed_generation


def _concerned(agent: AgentView) -> set[Key]:
    """Artifacts with an entry on the node, or with bytes that were made for one."""
    keys = {(entry.namespace, entry.name) for entry in agent.entries}
    for held in agent.inventory:
        namespace, _, rest = held.wanted_id.partition("/")
        if rest:
            keys.add((namespace, rest.partition(":")[0]))
    return keys
