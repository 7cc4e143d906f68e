"""What enters the identity of a final layout, and what cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from final_layouts import CONTRACT, LOADER, REQUEST, World, skeleton
from weightlease.errors import IdentityError
from weightlease.parallelism import Adapter, ExpertParallel, PipelineParallel, TensorParallel
from weightlease.producer.final_layout import FINAL_LAYOUT_BF16
from weightlease.restore import FinalLayoutArtifactSpec, FinalLayoutContext, FinalLayoutRequest
from weightlease.restore.request import SequenceParallelism

VARIANTS: dict[str, FinalLayoutRequest] = {
    "component": msgspec.structs.replace(REQUEST, component="text_encoder"),
    "loader": msgspec.structs.replace(
        REQUEST, loader=msgspec.structs.replace(LOADER, configuration_sha256="d" * 64)
    ),
    "loader version": msgspec.structs.replace(
        REQUEST, loader=msgspec.structs.replace(LOADER, version="2")
    ),
    "tp0": msgspec.structs.replace(REQUEST, tensor_parallel=TensorParallel(size=2, rank=0)),
    "tp1": msgspec.structs.replace(REQUEST, tensor_parallel=TensorParallel(size=2, rank=1)),
    "ulysses": msgspec.structs.replace(
        REQUEST, sequence_parallel=SequenceParallelism(size=2, backend="ulysses")
    ),
    "ring": msgspec.structs.replace(
        REQUEST, sequence_parallel=SequenceParallelism(size=2, backend="ring")
    ),
    "stage": msgspec.structs.replace(REQUEST, pipeline_parallel=PipelineParallel(size=2, rank=1)),
    "experts": msgspec.structs.replace(
        REQUEST, expert_parallel=ExpertParallel(size=2, rank=1, experts=(4, 5))
    ),
    "merged": msgspec.structs.replace(
        REQUEST, merged_adapters=(Adapter(fingerprint="a" * 64, merge="lora-add"),)
    ),
}


def test_each_typed_fact_of_a_request_makes_another_key(world: World) -> None:
    keys = {name: world.context(request=request).identity.key for name, request in VARIANTS.items()}
    keys["plain"] = world.context().identity.key
    assert len(set(keys.values())) == len(VARIANTS) + 1


def test_the_same_request_makes_the_same_key_in_another_place(world: World, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    other = World(tmp_path / "elsewhere")
    assert other.context().identity.key == world.context().identity.key


def test_a_request_has_no_field_that_changes_no_byte() -> None:
    fields = set(FinalLayoutRequest.__struct_fields__)
    assert fields == {
        *("component", "loader", "tensor_parallel", "sequence_parallel"),
        *("pipeline_parallel", "expert_parallel", "merged_adapters"),
    }
    assert set(SequenceParallelism.__struct_fields__) == {"size", "backend"}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"component": "c", "device": "cuda:0"}, FinalLayoutRequest)


def test_a_dynamic_adapter_has_no_identity(world: World) -> None:
    overlay = msgspec.structs.replace(REQUEST, merged_adapters=(Adapter(fingerprint="a" * 64),))
    with pytest.raises(IdentityError, match="dynamic overlay"):
        world.context(request=overlay)


def changed_abi(part: str) -> FinalLayoutArtifactSpec:
    return replace(FINAL_LAYOUT_BF16, abi=FINAL_LAYOUT_BF16.abi | {part: "another-v2"})


@pytest.mark.parametrize("part", sorted(FINAL_LAYOUT_BF16.abi))
def test_another_version_of_any_part_of_the_abi_is_another_key(world: World, part: str) -> None:
    plain = world.context()
    other = FinalLayoutContext.of(
        REQUEST, world.source, skeleton(), changed_abi(part), world.contract
    )
    assert other.identity.key != plain.identity.key


@pytest.mark.parametrize(
    "spoil",
    [
        lambda abi: abi.pop("restorer"),
        lambda abi: abi.update(surprise="1"),
        lambda abi: abi.update(restorer=""),
    ],
)
def test_an_abi_that_leaves_a_part_out_is_refused(spoil: Callable[[dict[str, str]], None]) -> None:
    abi = dict(FINAL_LAYOUT_BF16.abi)
    spoil(abi)
    with pytest.raises(IdentityError, match="abi must state exactly"):
        replace(FINAL_LAYOUT_BF16, abi=abi)


def test_another_model_contract_or_version_is_another_key(world: World) -> None:
    keys = {
        world.context(contract=replace(CONTRACT, version="2")).identity.key,
        world.context(contract=replace(CONTRACT, implementation_id="other")).identity.key,
        world.context().identity.key,
    }
    assert len(keys) == 3


def test_the_key_comes_from_what_is_declared_and_not_from_the_code(world: World) -> None:
    def another_check(model: object) -> None:
        """Other code under the same version."""

    same = replace(CONTRACT, validate=another_check)
    assert world.context(contract=same).identity.key == world.context().identity.key


def test_another_content_of_the_source_is_another_key(world: World, tmp_path: Path) -> None:
    (tmp_path / "fine-tune").mkdir()
    (tmp_path / "fine-tune" / "source").mkdir()
    (tmp_path / "fine-tune" / "source" / "model.safetensors").write_bytes(b"other bytes")
    other = World(tmp_path / "fine-tune")
    assert other.context().identity.key != world.context().identity.key
