"""Planning changes nothing, a commit is whole or the model is gone, views are not copies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import pytest
import torch

from final_layouts import CONTRACT, FLOAT32, Small, World, equal, finished, skeleton
from weightlease.errors import FailureCode, WeightLeaseError
from weightlease.lease import WeightLease
from weightlease.restore import ContractViolation, FinalLayoutRequest, Violation


@pytest.fixture
def lease(world: World) -> Iterator[WeightLease]:
    with world.publish(finished()) as lease:
        yield lease


def snapshot(model: torch.nn.Module) -> dict[str, int]:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers(remove_duplicate=False))
    return {name: id(tensor) for name, tensor in (parameters | buffers).items()}


def restored(world: World, lease: WeightLease) -> Small:
    model = skeleton()
    world.restorer().plan_restore(model, lease).commit()
    return model


def refusal(world: World, model: torch.nn.Module, lease: WeightLease) -> Violation:
    before = snapshot(model)
    with pytest.raises(ContractViolation) as caught:
        world.restorer().plan_restore(model, lease)
    assert snapshot(model) == before, "planning changed the model"
    assert caught.value.failure.code is FailureCode.RESTORE_PREFLIGHT_FAILED
    return caught.value.reason


# ---- what a restore gives ----


def test_a_restored_model_computes_what_the_published_one_does(
    world: World, lease: WeightLease
) -> None:
    value = torch.linspace(-1, 1, 24, dtype=torch.bfloat16).reshape(3, 8)
    assert equal(restored(world, lease)(value), finished()(value))


def test_every_tensor_comes_back_bit_for_bit(world: World, lease: WeightLease) -> None:
    wanted, found = finished().state_dict(), restored(world, lease).state_dict()
    assert wanted.keys() == found.keys()
    assert all(equal(wanted[name], found[name]) for name in wanted)


def test_parameters_are_views_of_the_lease_and_not_copies(world: World, lease: WeightLease) -> None:
    model = restored(world, lease)
    assert lease.copied_bytes == 0
    for name in lease.names():
        tensor = model.get_parameter(name) if name not in {"running", "steps"} else None
        if tensor is not None:
            assert tensor.data_ptr() == lease.tensor(name).data_ptr()
            assert not tensor.requires_grad


def test_the_pages_of_two_restored_models_are_one_file(world: World, lease: WeightLease) -> None:
    models = [restored(world, lease) for _ in range(2)]
    pointers = {model.embed.weight.data_ptr() for model in models}
    (address,) = pointers
    with open(f"/proc/{os.getpid()}/maps") as maps:
        held = [line for line in maps if _spans(line, address)]
    assert "model-00001-of-00001.safetensors" in held[0]
    assert held[0].split()[1] == "r--s"


def _spans(line: str, address: int) -> bool:
    begin, _, end = line.split(maxsplit=1)[0].partition("-")
    return int(begin, 16) <= address < int(end, 16)


def test_tied_weights_stay_one_parameter(world: World, lease: WeightLease) -> None:
    model = restored(world, lease)
    assert model.out.weight is model.embed.weight
    assert "out.weight" not in lease.names()


def test_preserved_float32_modules_stay_float32(world: World, lease: WeightLease) -> None:
    model = restored(world, lease)
    assert model.norm.weight.dtype is torch.float32
    assert model.embed.weight.dtype is torch.bfloat16


def test_non_persistent_buffers_are_derived_and_not_published(
    world: World, lease: WeightLease
) -> None:
    assert "table" not in lease.names()
    assert equal(restored(world, lease).table, finished().table)


def test_a_derived_buffer_that_has_memory_is_left_alone(world: World, lease: WeightLease) -> None:
    model = finished(seed=7)
    table = model.table
    world.restorer().plan_restore(model, lease).commit()
    assert model.table is table
    assert equal(model.embed.weight, finished().embed.weight)


def test_a_model_outlives_the_lease_that_it_was_restored_from(
    world: World, lease: WeightLease
) -> None:
    model = restored(world, lease)
    lease.close()
    assert equal(model.embed.weight, finished().embed.weight)


# ---- planning ----


def test_planning_changes_neither_model_nor_lease(world: World, lease: WeightLease) -> None:
    model = skeleton()
    before = snapshot(model)
    world.restorer().plan_restore(model, lease)
    assert snapshot(model) == before
    assert lease.live_views() == ()
    lease.close(strict=True)


def test_a_lease_of_another_identity_is_refused(world: World) -> None:
    other = world.context(request=replace_component(world, "other"))
    with world.publish(finished(), other) as lease:
        assert refusal(world, skeleton(), lease) is Violation.IDENTITY_INCOMPATIBLE


def replace_component(world: World, name: str) -> FinalLayoutRequest:
    return msgspec.structs.replace(world.request, component=name)


@pytest.mark.parametrize("change", ["shape", "missing", "surplus", "kind"])
def test_a_model_that_owns_other_tensors_is_refused(
    world: World, lease: WeightLease, change: str
) -> None:
    model = skeleton()
    if change == "shape":
        model.body[0] = torch.nn.Linear(8, 24, device="meta")
    elif change == "missing":
        model.body[0].register_parameter("bias", None)
    elif change == "surplus":
        model.extra = torch.nn.Parameter(torch.empty(1, device="meta"))
    else:
        del model.norm.bias
        model.norm.register_buffer("bias", torch.empty(8, device="meta"))
    assert refusal(world, model, lease) is Violation.TENSOR_CONTRACT_CHANGED


def test_a_model_that_lost_its_tie_is_refused(world: World, lease: WeightLease) -> None:
    model = skeleton()
    model.out.weight = torch.nn.Parameter(torch.empty(8, 8, device="meta"))
    assert refusal(world, model, lease) is Violation.TENSOR_CONTRACT_CHANGED


def test_a_source_that_was_replaced_stops_plan_and_commit(world: World, lease: WeightLease) -> None:
    model = skeleton()
    plan = world.restorer().plan_restore(model, lease)
    context = world.context()
    (world.place / "source" / "model.safetensors").write_bytes(b"something else!")
    with pytest.raises(ContractViolation) as caught:
        world.restorer(context).plan_restore(skeleton(), lease)
    assert caught.value.reason is Violation.SOURCE_CHANGED
    with pytest.raises(WeightLeaseError, match="changed while it was read"):
        plan.commit()


def test_a_buffer_that_no_contract_derives_is_refused(world: World, lease: WeightLease) -> None:
    context = world.broken(replace(CONTRACT, derive=lambda model: {}))
    with pytest.raises(ContractViolation, match="'table' is not part of the artifact") as caught:
        world.restorer(context).plan_restore(skeleton(), lease)
    assert caught.value.reason is Violation.MODEL_CONTRACT_UNSUPPORTED


def test_a_contract_that_cannot_derive_is_refused(world: World, lease: WeightLease) -> None:
    def fail(model: torch.nn.Module) -> dict[str, torch.Tensor]:
        raise RuntimeError("no table")

    with pytest.raises(ContractViolation, match="could not derive buffers"):
        world.restorer(world.broken(replace(CONTRACT, derive=fail))).plan_restore(skeleton(), lease)


def test_a_closed_lease_is_no_plan(world: World, lease: WeightLease) -> None:
    lease.close()
    with pytest.raises(WeightLeaseError, match="is closed"):
        world.restorer().plan_restore(skeleton(), lease)


# ---- committing ----


def test_a_plan_commits_once(world: World, lease: WeightLease) -> None:
    model = skeleton()
    plan = world.restorer().plan_restore(model, lease)
    plan.commit()
    with pytest.raises(WeightLeaseError, match="a plan commits once") as caught:
        plan.commit()
    assert caught.value.failure.code is FailureCode.RESTORE_COMMIT_FAILED
    assert equal(model.embed.weight, finished().embed.weight), "the first commit stands"


def test_a_model_that_changed_after_planning_is_not_committed(
    world: World, lease: WeightLease
) -> None:
    model = skeleton()
    plan = world.restorer().plan_restore(model, lease)
    model.norm = torch.nn.LayerNorm(8, device="meta")
    model.norm.weight = torch.nn.Parameter(torch.zeros(8))
    model.embed.weight = torch.nn.Parameter(torch.zeros(8, 8))
    with pytest.raises(WeightLeaseError, match="replaced after the restore was planned"):
        plan.commit()


def spoiled(world: World, lease: WeightLease) -> Small:
    def refuse(model: torch.nn.Module) -> None:
        raise ValueError("the invariant does not hold")

    model = skeleton()
    plan = world.restorer(world.broken(replace(CONTRACT, validate=refuse))).plan_restore(
        model, lease
    )
    with pytest.raises(WeightLeaseError, match="the invariant does not hold") as caught:
        plan.commit()
    assert caught.value.failure.code is FailureCode.RESTORE_COMMIT_FAILED
    return model


def test_a_failed_commit_makes_the_model_unusable_and_says_so(
    world: World, lease: WeightLease
) -> None:
    model = spoiled(world, lease)
    uses: list[Callable[[], object]] = [
        lambda: model(torch.zeros(1, 8)),
        lambda: model.body(torch.zeros(1, 8)),
        model.state_dict,
        lambda: model.load_state_dict(finished().state_dict()),
    ]
    for use in uses:
        with pytest.raises(WeightLeaseError, match="build a fresh one") as caught:
            use()
        assert caught.value.failure.code is FailureCode.RESTORE_COMMIT_FAILED
    assert all(parameter.is_meta for parameter in model.parameters())


def test_a_model_of_a_failed_commit_is_never_planned_again(
    world: World, lease: WeightLease
) -> None:
    model = spoiled(world, lease)
    with pytest.raises(ContractViolation) as caught:
        world.restorer().plan_restore(model, lease)
    assert caught.value.reason is Violation.MODEL_UNUSABLE


def test_a_failed_commit_keeps_no_view_of_the_lease(world: World, lease: WeightLease) -> None:
    spoiled(world, lease)
    assert lease.live_views() == ()


def test_a_fresh_model_restores_after_a_failed_commit(world: World, lease: WeightLease) -> None:
    spoiled(world, lease)
    assert equal(restored(world, lease).embed.weight, finished().embed.weight)


def test_the_validator_sees_the_finished_model(world: World, lease: WeightLease) -> None:
    seen: list[bool] = []

    def look(model: torch.nn.Module) -> None:
        seen.append(any(parameter.is_meta for parameter in model.parameters()))
        CONTRACT.validate(model)

    context = world.broken(replace(CONTRACT, validate=look))
    world.restorer(context).plan_restore(skeleton(), lease).commit()
    assert seen == [False]


def test_an_interrupted_commit_spoils_the_model_and_passes_the_interrupt_on(
    world: World, lease: WeightLease
) -> None:
    def interrupt(model: torch.nn.Module) -> None:
        raise KeyboardInterrupt

    model = skeleton()
    plan = world.restorer(world.broken(replace(CONTRACT, validate=interrupt))).plan_restore(
        model, lease
    )
    with pytest.raises(KeyboardInterrupt):
        plan.commit()
    with pytest.raises(WeightLeaseError, match="interrupted"):
        model(torch.zeros(1, 8))


def test_patterns_of_the_contract_are_what_the_artifact_preserves(lease: WeightLease) -> None:
    wide = {entry.name for entry in lease.manifest.tensors if entry.dtype == "torch.float32"}
    assert wide == {"norm.weight", "norm.bias", "running"}
    assert replace(CONTRACT).float32 == FLOAT32
