"""Which parallel coordinates enter an identity: those that change bytes, layout or ownership.

    dimension   enters                              never enters
    data        size and rank, if ranks own         the rank of a replica
                distinct weights
    tensor      size and rank, if tensors are split the rank of a replicated component
    sequence    size and backend, if they change    the rank: the type has none
                the layout
    pipeline    size and stage, beyond one stage
    expert      size, rank and the experts owned,   the rank where every rank holds all experts
                where they are stated

Nothing is read from process groups or the environment: a loader states its coordinates. Source: the
Host Weight Runtime's table of parallel dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from weightlease.errors import IdentityError
from weightlease.identity import Adaptation, Layout


class _Coordinate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    size: int = 1

    def __post_init__(self) -> None:
        if self.size < 1:
            raise IdentityError(f"{type(self).__name__}.size {self.size} must be at least 1")


class _Ranked(_Coordinate, frozen=True, kw_only=True):
    rank: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.rank < self.size:
            raise IdentityError(
                f"{type(self).__name__}.rank {self.rank} is outside size {self.size}"
            )


class DataParallel(_Ranked, frozen=True, kw_only=True):
    """Replicas, unless each rank owns weights of its own (sharded data parallelism)."""

    owns_distinct_weights: bool = False


class TensorParallel(_Ranked, frozen=True, kw_only=True):
    """`splits_tensors` is false for a component that every rank holds whole."""

    splits_tensors: bool = True


class SequenceParallel(_Coordinate, frozen=True, kw_only=True):
    """Has no rank: ranks of one sequence consume identical bytes."""

    backend: str = "none"
    changes_layout: bool = True


class PipelineParallel(_Ranked, frozen=True, kw_only=True):
    """`rank` is the stage that this consumer owns."""


class ExpertParallel(_Ranked, frozen=True, kw_only=True):
    """`experts` are the global numbers of the experts owned, or empty where all are."""

    experts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if list(self.experts) != sorted(set(self.experts)) or min(self.experts, default=0) < 0:
            raise IdentityError(f"experts {self.experts} must be sorted, unique and not negative")


class Coordinates(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where one consumer stands in every dimension."""

    data: DataParallel = DataParallel()
    tensor: TensorParallel = TensorParallel()
    sequence: SequenceParallel = SequenceParallel()
    pipeline: PipelineParallel = PipelineParallel()
    expert: ExpertParallel = ExpertParallel()


class Adapter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One adapter of a request; `merge` names how it is merged, empty where it stays an overlay."""

    fingerprint: str
    scale: float = 1.0
    merge: str = ""


def layout(
    name: str, coordinates: Coordinates, metadata: Mapping[str, Any] | None = None
) -> Layout:
    """The layout of `coordinates`, with what the table above lets in.

    Raises:
        IdentityError: metadata that is not deterministic JSON, or takes a dimension's name.

    """
    tensor, sequence = coordinates.tensor, coordinates.sequence
    if not tensor.splits_tensors:
        tensor = TensorParallel()
    if sequence.size == 1 or not sequence.changes_layout:
        sequence = SequenceParallel()
    dimensions = _dimensions(coordinates)
    extra = dict(metadata or {})
    taken = sorted(extra.keys() & {"data_parallel", "pipeline_parallel", "expert_parallel"})
    if taken:
        raise IdentityError(f"layout metadata must not state {', '.join(taken)} beside coordinates")
    return Layout(
        name,
        tensor_parallel_size=tensor.size,
        tensor_parallel_rank=tensor.rank,
        sequence_parallel_size=sequence.size,
        sequence_parallel_backend=sequence.backend,
        metadata={**extra, **dimensions},
    )


def adaptation(adapters: tuple[Adapter, ...]) -> Adaptation:
    """The base weights, or adapters merged into them in this order.

    Raises:
        IdentityError: an adapter stays a dynamic overlay, which no reusable artifact holds.

    """
    if not adapters:
        return Adaptation()
    for adapter in adapters:
        if not adapter.merge:
            raise IdentityError(
                f"adapter {adapter.fingerprint[:80]!r} is a dynamic overlay; lease the base "
                "weights and apply it after the restore, or merge it and name how",
                fingerprint=adapter.fingerprint,
            )
        if not adapter.fingerprint:
            raise IdentityError("a merged adapter needs a fingerprint")
    merged = [msgspec.to_builtins(adapter) for adapter in adapters]
    fingerprint = "+".join(adapter.fingerprint for adapter in adapters)
    return Adaptation("merged-adapters", fingerprint, {"adapters": merged})


def _dimensions(coordinates: Coordinates) -> dict[str, Any]:
    found: dict[str, Any] = {}
    data, pipeline, expert = coordinates.data, coordinates.pipeline, coordinates.expert
    if data.owns_distinct_weights and data.size > 1:
        found["data_parallel"] = {"size": data.size, "rank": data.rank}
    if pipeline.size > 1:
        found["pipeline_parallel"] = {"size": pipeline.size, "stage": pipeline.rank}
    if expert.experts:
        found["expert_parallel"] = {
            "size": expert.size,
            "rank": expert.rank,
            "experts": list(expert.experts),
        }
    return found
