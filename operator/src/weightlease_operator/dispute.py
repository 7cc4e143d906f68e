"""When nodes agree with each other against the canary.

Nodes whose Jobs ended with a mismatch name what they made. If at least two name the same, and more
of them than nodes that hold what the canary made, then the canary is the odd one out: its shard is
forgotten, its Jobs are deleted, and one of those that agree becomes the canary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weightlease.api.weight_artifact import ShardStatus
from weightlease.reasons import Reason
from weightlease_operator.placement import NodeState
from weightlease_operator.shards import NodeShard, Phase

_MISMATCHES = frozenset({Reason.IDENTITY_MISMATCH, Reason.CONTENT_MISMATCH})
_ENOUGH = 2


@dataclass(frozen=True, slots=True)
class Dispute:
    """One shard whose canary is outvoted."""

    component: str
    agreeing: tuple[str, ...]
    next_attempt: int
    message: str


def find_disputes(
    shards: Mapping[str, ShardStatus], rows: Sequence[NodeShard]
) -> tuple[Dispute, ...]:
    found = (_dispute(shard, rows) for shard in shards.values())
    return tuple(dispute for dispute in found if dispute is not None)


def _dispute(shard: ShardStatus, rows: Sequence[NodeShard]) -> Dispute | None:
    own = [row for row in rows if row.component == shard.component]
    votes: dict[tuple[str, str], list[NodeShard]] = {}
    against = [row for row in own if _votes_against(row, shard)]
    for row in against:
        if row.job is not None and row.job.outcome is not None:
            made = (row.job.outcome.key, row.job.outcome.manifest_sha256)
            votes.setdefault(made, []).append(row)
    winners = max(votes.values(), key=len, default=[])
    holding = sum(row.phase is Phase.READY for row in own)
    able = [row for row in winners if row.state is NodeState.ELIGIBLE]
    if len(winners) < _ENOUGH or len(winners) <= holding or not able:
        return None
    return Dispute(
        component=shard.component,
        agreeing=tuple(row.node for row in able),
        next_attempt=able[0].attempts,
        message=f"{len(winners)} nodes agree on {shard.component} against {shard.canary_node}; "
        f"{able[0].node} becomes the canary",
    )


def _votes_against(row: NodeShard, shard: ShardStatus) -> bool:
    said = row.job.outcome if row.job else None
    if said is None or row.phase is not Phase.FAILED or said.reason not in _MISMATCHES:
        return False
    return bool(said.manifest_sha256) and (said.key, said.manifest_sha256) != (
        shard.key,
        shard.manifest_sha256,
    )
