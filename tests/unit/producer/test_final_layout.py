"""The final-layout producer: what it publishes, what it refuses, and that it only reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from final_layouts import CONTRACT, Small, World, equal, finished
from weightlease.errors import FailureCode, WeightLeaseError
from weightlease.identity import WeightArtifactIdentity
from weightlease.manifest import TensorKind
from weightlease.producer.final_layout import FINAL_LAYOUT_BF16, FinalLayoutBF16Producer
from weightlease.reports import StoreStatus
from weightlease.restore import FinalLayoutContext
from weightlease.runtime import (
    HostWeightRuntime,
    PublicationOutcome,
    ResolutionOutcome,
    RuntimeMode,
    RuntimePolicy,
)
from weightlease.store.protocol import CoordinationScope, LookupPhase


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_it_runs_after_the_load_in_one_process() -> None:
    assert FinalLayoutBF16Producer.lookup_phase is LookupPhase.POST_LOAD_ONLY
    assert FinalLayoutBF16Producer.coordination is CoordinationScope.SINGLE_PROCESS


def test_the_manifest_says_what_each_tensor_is(world: World) -> None:
    with world.publish(finished()) as lease:
        entries = {entry.name: entry for entry in lease.manifest.tensors}
        metadata = lease.manifest.format_metadata
    assert (entries["steps"].kind, entries["steps"].role) == (
        TensorKind.BUFFER,
        "persistent_buffer",
    )
    assert entries["norm.weight"].role == "preserved_float32"
    assert (entries["embed.weight"].kind, entries["embed.weight"].role) == (
        TensorKind.PARAMETER,
        "weight",
    )
    assert metadata["ties"] == {"embed.weight": ["out.weight"]}
    assert metadata["tensor_count"] == len(entries)
    assert "tensor_semantics" not in metadata


def test_the_content_digest_does_not_depend_on_how_tensors_are_split_over_files(
    tmp_path: Path,
) -> None:
    digests, counts = set(), set()
    for limit in (1, 64, 1 << 30):
        (tmp_path / str(limit)).mkdir()
        with World(tmp_path / str(limit)).publish(finished(), shard_bytes=limit) as lease:
            digests.add(lease.manifest.artifact_content_sha256)
            counts.add(len(lease.manifest.files))
    assert len(digests) == 1
    assert len(counts) == 3


def test_publishing_leaves_the_serving_model_as_it_was(world: World) -> None:
    model = finished()
    before = {name: (tensor.data_ptr(), tensor.clone()) for name, tensor in _state(model).items()}
    world.publish(model).close()
    for name, tensor in _state(model).items():
        pointer, value = before[name]
        assert tensor.data_ptr() == pointer
        assert equal(tensor, value)


def _state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


def narrow_norm(model: Small) -> None:
    model.norm.to(torch.bfloat16)


def wide_body(model: Small) -> None:
    model.body.float()


def on_meta(model: Small) -> None:
    model.body.to("meta")


def surplus(model: Small) -> None:
    model.extra = torch.nn.Parameter(torch.zeros(1))


@pytest.mark.parametrize("spoil", [narrow_norm, wide_body, on_meta, surplus])
def test_only_a_finished_cpu_model_of_the_contract_is_published(
    world: World, spoil: Callable[[Small], None]
) -> None:
    model = finished()
    spoil(model)
    context = world.context()
    with pytest.raises(WeightLeaseError) as caught:
        FinalLayoutBF16Producer(context, model).total_bytes  # noqa: B018 - the property checks
    assert caught.value.failure.code is FailureCode.PRODUCER_FAILED
    failed = world.store.get_or_build(_with_total(context, model))
    assert failed.status is StoreStatus.FAILED
    assert failed.failure is not None
    assert failed.failure.code is FailureCode.PRODUCER_FAILED
    assert world.store.lookup(context.identity).status is StoreStatus.MISS


class _Announced(FinalLayoutBF16Producer):
    total_bytes = 1 << 20


def _with_total(context: FinalLayoutContext, model: torch.nn.Module) -> FinalLayoutBF16Producer:
    return _Announced(context, model)


def test_a_model_that_fails_its_contract_is_not_published(world: World) -> None:
    def refuse(model: torch.nn.Module) -> None:
        raise ValueError("the invariant does not hold")

    context = world.broken(replace(CONTRACT, validate=refuse))
    failed = world.store.get_or_build(_with_total(context, finished()))
    assert failed.failure is not None
    assert "the invariant does not hold" in failed.failure.message


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_source_replaced_before_or_during_production_fails_the_publication(
    world: World, when: str
) -> None:
    context = world.context()
    checkpoint = world.place / "source" / "model.safetensors"
    model = finished()
    if when == "before":
        checkpoint.write_bytes(b"another file...")
    else:

        def validate(model: torch.nn.Module) -> None:
            checkpoint.write_bytes(b"another file...")

        context = replace(context, contract=replace(context.contract, validate=validate))
    failed = world.store.get_or_build(_with_total(context, model))
    assert failed.status is StoreStatus.FAILED
    assert failed.failure is not None
    assert "changed while it was read" in failed.failure.message
    assert world.store.lookup(context.identity).status is StoreStatus.MISS


def test_a_context_of_another_representation_is_refused(world: World) -> None:
    other = replace(FINAL_LAYOUT_BF16, producer_id="weightlease.final-layout-fp8")
    with pytest.raises(WeightLeaseError) as caught:
        FinalLayoutBF16Producer(replace(world.context(), spec=other), finished())
    assert caught.value.failure.code is FailureCode.PRODUCER_UNSUPPORTED


def test_a_fallback_start_publishes_and_the_next_start_restores(world: World) -> None:
    policy = RuntimePolicy(RuntimeMode.PREFERRED, allow_post_load_publish=True)
    runtime = HostWeightRuntime(lambda: world.store, policy)
    context = world.context()

    def identity() -> WeightArtifactIdentity:
        return context.identity

    def producer() -> FinalLayoutBF16Producer:
        return FinalLayoutBF16Producer(context, finished())

    cold = runtime.resolve(identity, producer)
    assert cold.report.outcome is ResolutionOutcome.CANONICAL_FALLBACK
    published = runtime.publish_after_load(identity, producer)
    assert published.outcome is PublicationOutcome.PUBLISHED
    with runtime.resolve(identity, producer) as warm:
        assert warm.report.outcome is ResolutionOutcome.LOCAL_HIT
        with warm.take() as lease:
            model = world.build()
            world.restorer(context).plan_restore(model, lease).commit()
            assert equal(model.state_dict()["embed.weight"], finished().embed.weight)
            del model
