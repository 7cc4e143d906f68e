"""Which nodes an artifact goes to.

    state      when                                           entry            Jobs   counted
    UNMATCHED  labels do not match                            removed          none   no
    AWAY       cordoned, not Ready or tainted                 kept if there    none   if it has all
    SILENT     its agent has not reported within the grace    kept if there    none   yes
    ELIGIBLE   everything else                                as planned       yes    yes

A cordon or a taint never removes an entry: an agent cleans what no entry names, and a node that is
drained for an hour should come back warm.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum, auto

from weightlease.api.weight_artifact import (
    NodeSelectorOperator,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Placement,
    Toleration,
    TolerationOperator,
)
from weightlease_operator.observation import AgentView, NodeView, Taint


class NodeState(Enum):
    """What a node is to one artifact."""

    UNMATCHED = auto()
    AWAY = auto()
    SILENT = auto()
    ELIGIBLE = auto()


_REPELLING = frozenset({"NoSchedule", "NoExecute"})


def node_state(
    placement: Placement,
    node: NodeView,
    agent: AgentView | None,
    *,
    now: datetime,
    grace: timedelta,
) -> NodeState:
    if not matches_labels(placement, node.labels):
        return NodeState.UNMATCHED
    if node.unschedulable or not node.ready or not _tolerated(placement.tolerations, node.taints):
        return NodeState.AWAY
    return NodeState.ELIGIBLE if is_reporting(agent, now=now, grace=grace) else NodeState.SILENT


def is_reporting(agent: AgentView | None, *, now: datetime, grace: timedelta) -> bool:
    """Whether the agent's last report is recent enough to be believed."""
    return agent is not None and agent.reported_at is not None and now - agent.reported_at <= grace


def matches_labels(placement: Placement, labels: Mapping[str, str]) -> bool:
    selected = all(labels.get(key) == value for key, value in placement.node_selector.items())
    terms = placement.node_affinity
    return selected and (not terms or any(_term_matches(term, labels) for term in terms))


def _term_matches(term: NodeSelectorTerm, labels: Mapping[str, str]) -> bool:
    return all(
        _OPERATORS[requirement.operator](requirement, labels.get(requirement.key))
        for requirement in term.match_expressions
    )


_Predicate = Callable[[NodeSelectorRequirement, str | None], bool]


def _numeric(compare: Callable[[int, int], bool]) -> _Predicate:
    def predicate(requirement: NodeSelectorRequirement, value: str | None) -> bool:
        try:
            (bound,) = requirement.values
            return value is not None and compare(int(value), int(bound))
        except ValueError:  # not one value, or not a whole number: matches nothing
            return False

    return predicate


# the scheduler's rules: https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node
_OPERATORS: dict[NodeSelectorOperator, _Predicate] = {
    NodeSelectorOperator.IN: lambda requirement, value: value in requirement.values,
    NodeSelectorOperator.NOT_IN: lambda requirement, value: value not in requirement.values,
    NodeSelectorOperator.EXISTS: lambda _requirement, value: value is not None,
    NodeSelectorOperator.DOES_NOT_EXIST: lambda _requirement, value: value is None,
    NodeSelectorOperator.GT: _numeric(operator.gt),
    NodeSelectorOperator.LT: _numeric(operator.lt),
}


def _tolerated(tolerations: Sequence[Toleration], taints: Sequence[Taint]) -> bool:
    return all(
        any(_tolerates(toleration, taint) for toleration in tolerations)
        for taint in taints
        if taint.effect in _REPELLING
    )


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if not toleration.key:
        return toleration.operator is TolerationOperator.EXISTS
    if toleration.key != taint.key:
        return False
    exists = toleration.operator is TolerationOperator.EXISTS
    return exists or (toleration.value or "") == taint.value
