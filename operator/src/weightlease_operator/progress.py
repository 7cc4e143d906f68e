"""How far the nodes that work now are, in bytes and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from weightlease.api.weight_artifact import Progress, ShardStatus
from weightlease.api.weight_node import HeldArtifact, HeldState
from weightlease_operator.observation import Observation, Sample
from weightlease_operator.shards import NodeShard, Phase

# agents report every 15 s at most; a rate over less would be noise
_SAMPLE_INTERVAL = timedelta(seconds=5)


def progress_of(
    observed: Observation, shards: Mapping[str, ShardStatus], rows: Sequence[NodeShard]
) -> tuple[Progress | None, Sample | None]:
    """Progress and the sample for the next pass; None while no node works or no size is known."""
    working = [row for row in rows if row.phase is Phase.WORKING]
    done = total = 0
    for row in working:
        held = _publishing(observed, row)
        shard = shards.get(row.component)
        size = shard.bytes if shard else held.bytes if held else 0
        total += size
        done += min(size, held.bytes_done) if held else 0
    if not total:
        return None, None
    sample = _sampled(observed, done)
    rate = sample.bytes_per_second
    return (
        Progress(
            percent=100 * done // total,
            bytes_per_second=rate,
            eta_seconds=(total - done) // rate if rate else None,
        ),
        sample,
    )


def _publishing(observed: Observation, row: NodeShard) -> HeldArtifact | None:
    agent = observed.agents.get(row.node)
    identifier = f"{observed.artifact.id_prefix}{row.component}"
    for held in agent.inventory if agent else ():
        if held.state is HeldState.PUBLISHING and held.wanted_id == identifier:
            return held
    return None


def _sampled(observed: Observation, done: int) -> Sample:
    last = observed.sample
    if last is None:
        return Sample(observed.now, done)
    elapsed = observed.now - last.at
    if elapsed < _SAMPLE_INTERVAL:
        return last
    # A node that finished takes its bytes along: no rate then, rather than a negative one.
    rate = int(max(0, done - last.done) / elapsed.total_seconds())
    return Sample(observed.now, done, rate)
