"""The document's table of parallel dimensions: what must differ does, the rest does not."""

from __future__ import annotations

import msgspec
import pytest

from small_artifact import identity
from weightlease import parallelism
from weightlease.errors import FailureCode, IdentityError
from weightlease.parallelism import (
    Adapter,
    Coordinates,
    DataParallel,
    ExpertParallel,
    PipelineParallel,
    SequenceParallel,
    TensorParallel,
)


def key(coordinates: Coordinates) -> str:
    layout = parallelism.layout("final-layout", coordinates)
    return msgspec.structs.replace(identity(), layout=layout).key


def test_replicas_of_data_parallelism_share_an_artifact() -> None:
    ranks = [Coordinates(data=DataParallel(size=4, rank=rank)) for rank in range(4)]
    assert {key(rank) for rank in ranks} == {key(Coordinates())}


def test_data_parallel_ranks_that_own_weights_of_their_own_never_meet() -> None:
    ranks = [
        Coordinates(data=DataParallel(size=2, rank=rank, owns_distinct_weights=True))
        for rank in range(2)
    ]
    assert len({key(rank) for rank in ranks} | {key(Coordinates())}) == 3


def test_tensor_parallel_ranks_and_sizes_never_meet() -> None:
    coordinates = [
        TensorParallel(),
        TensorParallel(size=2, rank=0),
        TensorParallel(size=2, rank=1),
        TensorParallel(size=4, rank=0),
        TensorParallel(size=4, rank=1),
    ]
    assert len({key(Coordinates(tensor=each)) for each in coordinates}) == len(coordinates)


def test_a_component_that_every_tensor_parallel_rank_holds_whole_is_shared() -> None:
    ranks = [
        Coordinates(tensor=TensorParallel(size=2, rank=rank, splits_tensors=False))
        for rank in range(2)
    ]
    assert {key(rank) for rank in ranks} == {key(Coordinates())}


def test_sequence_parallel_sizes_and_backends_that_change_the_layout_never_meet() -> None:
    coordinates = [
        SequenceParallel(),
        SequenceParallel(size=2, backend="ulysses"),
        SequenceParallel(size=2, backend="ring"),
        SequenceParallel(size=4, backend="ulysses"),
    ]
    assert len({key(Coordinates(sequence=each)) for each in coordinates}) == len(coordinates)


def test_sequence_parallelism_that_leaves_the_layout_alone_is_shared() -> None:
    unchanged = SequenceParallel(size=8, backend="ulysses", changes_layout=False)
    assert key(Coordinates(sequence=unchanged)) == key(Coordinates())


def test_a_sequence_rank_cannot_even_be_stated() -> None:
    assert "rank" not in SequenceParallel.__struct_fields__
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"size": 2, "rank": 1}, SequenceParallel)


def test_pipeline_stages_never_meet_and_one_stage_is_the_whole() -> None:
    stages = [Coordinates(pipeline=PipelineParallel(size=2, rank=stage)) for stage in range(2)]
    other = Coordinates(pipeline=PipelineParallel(size=3, rank=0))
    assert len({key(each) for each in [*stages, other, Coordinates()]}) == 4
    assert key(Coordinates(pipeline=PipelineParallel())) == key(Coordinates())


def test_ranks_that_own_other_experts_never_meet() -> None:
    ranks = [
        ExpertParallel(size=2, rank=0, experts=(0, 1)),
        ExpertParallel(size=2, rank=1, experts=(2, 3)),
        ExpertParallel(size=2, rank=0, experts=(0, 2)),
    ]
    assert len({key(Coordinates(expert=each)) for each in [*ranks, ExpertParallel()]}) == 4


def test_a_rank_that_states_its_experts_never_meets_one_that_holds_all() -> None:
    stated = Coordinates(expert=ExpertParallel(experts=(0,)))
    assert key(stated) != key(Coordinates())


def test_ranks_that_all_hold_every_expert_share_an_artifact() -> None:
    ranks = [Coordinates(expert=ExpertParallel(size=4, rank=rank)) for rank in range(4)]
    assert {key(rank) for rank in ranks} == {key(Coordinates())}


def test_dimensions_do_not_stand_in_for_each_other() -> None:
    found = [
        Coordinates(pipeline=PipelineParallel(size=2, rank=1)),
        Coordinates(tensor=TensorParallel(size=2, rank=1)),
        Coordinates(data=DataParallel(size=2, rank=1, owns_distinct_weights=True)),
        Coordinates(expert=ExpertParallel(size=2, rank=1, experts=(1,))),
    ]
    assert len({key(each) for each in found}) == len(found)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TensorParallel(size=0),
        lambda: TensorParallel(size=2, rank=2),
        lambda: DataParallel(size=2, rank=-1),
        lambda: PipelineParallel(size=1, rank=1),
        lambda: ExpertParallel(experts=(1, 0)),
        lambda: ExpertParallel(experts=(-1, 0)),
        lambda: parallelism.layout("x", Coordinates(), {"pipeline_parallel": {}}),
    ],
)
def test_coordinates_that_make_no_sense_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(IdentityError):
        make()


def test_merged_adapters_are_told_apart_by_fingerprint_scale_and_order() -> None:
    one = Adapter(fingerprint="a" * 64, merge="lora-add")
    other = Adapter(fingerprint="b" * 64, merge="lora-add")
    stronger = msgspec.structs.replace(one, scale=0.5)
    found = [(), (one,), (other,), (stronger,), (one, other), (other, one)]
    adapted = [parallelism.adaptation(adapters) for adapters in found]
    keys = {msgspec.structs.replace(identity(), adaptation=each).key for each in adapted}
    assert len(keys) == len(found)


def test_a_dynamic_overlay_is_refused_typed() -> None:
    with pytest.raises(IdentityError, match="dynamic overlay") as caught:
        parallelism.adaptation((Adapter(fingerprint="a" * 64),))
    assert caught.value.failure.code is FailureCode.INVALID_CONFIG


def test_a_merged_adapter_without_a_fingerprint_is_refused() -> None:
    with pytest.raises(IdentityError, match="fingerprint"):
        parallelism.adaptation((Adapter(fingerprint="", merge="lora-add"),))
