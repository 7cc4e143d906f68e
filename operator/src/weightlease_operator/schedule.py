"""Which Jobs to start now.

    shard       starts
    not fixed   one Job in all: the canary. It stays on its node while attempts are left there;
                when they are used up another node takes over; a failure that no retry can
                help stops the search
    fixed       as many nodes as the limit leaves, those at work first, then by name

Only ELIGIBLE nodes start anything. The limit counts nodes, not Jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from weightlease.api.weight_artifact import ShardStatus, WeightArtifactSpec
from weightlease_operator.observation import ClaimView
from weightlease_operator.placement import NodeState
from weightlease_operator.shards import Attempt, NodeShard, Phase

Shards = Mapping[str, ShardStatus]


def choose(
    spec: WeightArtifactSpec,
    shards: Shards,
    rows: Sequence[NodeShard],
    claim: ClaimView | None,
) -> list[NodeShard]:
    """The rows whose Jobs start now, in order."""
    busy = {row.node for row in rows if row.phase is Phase.WORKING}
    limit = concurrent_nodes(spec, claim)
    chosen: list[NodeShard] = []
    for component in spec.components:
        own = [row for row in rows if row.component == component.name]
        candidates = _rollout(own, busy) if component.name in shards else _canary(own)
        for row in candidates:
            if row.node in busy or len(busy) < limit:
                busy.add(row.node)
                chosen.append(row)
    return chosen


def concurrent_nodes(spec: WeightArtifactSpec, claim: ClaimView | None) -> int:
    """How many nodes may work at once; a claim that mounts on one node only allows one."""
    return 1 if claim is not None and claim.one_node_only else spec.rollout.max_concurrent_nodes


def _canary(rows: Sequence[NodeShard]) -> list[NodeShard]:
    waits = any(row.phase in (Phase.WORKING, Phase.WAITING) for row in rows)
    if waits or any(row.attempt is Attempt.FINAL for row in rows):
        return []
    return sorted(_startable(rows), key=lambda row: (-row.attempts, row.node))[:1]


def _rollout(rows: Sequence[NodeShard], busy: set[str]) -> list[NodeShard]:
    return sorted(_startable(rows), key=lambda row: (row.node not in busy, row.node))


def _startable(rows: Iterable[NodeShard]) -> list[NodeShard]:
    return [row for row in rows if row.phase is Phase.PENDING and row.state is NodeState.ELIGIBLE]
