"""FP8 with generated scales: values against an independent computation, and a key of its own."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from final_layouts import CONTRACT, REQUEST, Small, World, equal, finished, skeleton
from weightlease.errors import FailureCode, WeightLeaseError
from weightlease.lease import WeightLease
from weightlease.producer.final_layout import (
    FINAL_LAYOUT_FLOAT8,
    FinalLayoutBF16Producer,
    FinalLayoutFloat8Producer,
)
from weightlease.reports import StoreStatus
from weightlease.restore import (
    ContractViolation,
    FinalLayoutContext,
    FinalLayoutTensorRestorer,
    Violation,
)
from weightlease.restore.float8 import (
    FinalLayoutFloat8Restorer,
    Float8Linear,
    dequantized,
    quantize_linears,
    quantized,
)
from weightlease.restore.representation import Float8Scheme

SCHEMES = list(Float8Scheme)
PATTERNS = ["body.*"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# every value that e4m3 has, from its definition: sign, 4 exponent bits with bias 7, 3 of mantissa
E4M3 = sorted(
    {
        sign
        * (mantissa / 8 * 2.0**-6 if not exponent else (1 + mantissa / 8) * 2.0 ** (exponent - 7))
        for sign in (1, -1)
        for exponent in range(16)
        for mantissa in range(8)
        if (exponent, mantissa) != (15, 7)
    }
)


def nearest(value: float) -> float:
    """The e4m3 value nearest to `value`; of two as near, the one of even mantissa."""
    return min(E4M3, key=lambda each: (abs(each - value), _odd(each)))


def _odd(value: float) -> int:
    if value == 0:
        return 0
    exponent = max(math.floor(math.log2(abs(value))), -6)
    return round(abs(value) / 2.0 ** (exponent - 3)) % 2


@pytest.mark.parametrize("scheme", SCHEMES)
def test_scales_and_values_are_those_of_an_independent_computation(scheme: Float8Scheme) -> None:
    torch.manual_seed(5)
    weight = torch.randn(130, 140) * torch.logspace(-3, 1, 140)
    value, scale = quantized(weight, scheme)
    matrix = weight.numpy()
    for rows, columns in [((0, 128), (0, 128)), ((128, 130), (128, 140)), ((0, 128), (128, 140))]:
        place = (slice(*rows), slice(*columns))
        block = matrix if scheme is Float8Scheme.PER_TENSOR else matrix[place]
        expected = np.float32(np.abs(block).max() / np.float32(448))
        found = (
            scale if scheme is Float8Scheme.PER_TENSOR else scale[rows[0] // 128, columns[0] // 128]
        )
        assert float(found) == expected
        corner = matrix[place][:2, :4] / expected
        wanted = [[nearest(float(each)) for each in row] for row in corner]
        assert value.float()[place][:2, :4].tolist() == wanted


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_comes_back_is_near_and_zero_stays_zero(scheme: Float8Scheme) -> None:
    torch.manual_seed(5)
    weight = torch.randn(40, 300)
    back = dequantized(*quantized(weight, scheme), torch.float32)
    # half a step of three mantissa bits, or of the smallest number there is
    bound = weight.abs() / 16 + weight.abs().max() / 448 * 2.0**-10
    assert bool(((back - weight).abs() <= bound * 1.0001).all())
    zero = torch.zeros(3, 3)
    value, scale = quantized(zero, scheme)
    assert equal(dequantized(value, scale, torch.float32), zero)
    assert bool((scale == 1).all())


def float8_model(scheme: Float8Scheme, seed: int = 0) -> Small:
    model = finished(seed)
    assert quantize_linears(model, PATTERNS, scheme) == ("body.0",)
    return model


def float8_skeleton(scheme: Float8Scheme) -> Small:
    model = skeleton()
    quantize_linears(model, PATTERNS, scheme)
    return model


def context(world: World, scheme: Float8Scheme) -> FinalLayoutContext:
    return FinalLayoutContext.of(
        REQUEST, world.source, float8_skeleton(scheme), FINAL_LAYOUT_FLOAT8[scheme], CONTRACT
    )


def published(world: World, scheme: Float8Scheme) -> WeightLease:
    producer = FinalLayoutFloat8Producer(context(world, scheme), float8_model(scheme))
    built = world.store.get_or_build(producer)
    assert built.lease is not None, built.failure
    return built.lease


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_restored_fp8_model_computes_what_the_published_one_does(
    world: World, scheme: Float8Scheme
) -> None:
    with published(world, scheme) as lease:
        model = float8_skeleton(scheme)
        FinalLayoutFloat8Restorer(context(world, scheme)).plan_restore(model, lease).commit()
        value = torch.linspace(-1, 1, 8, dtype=torch.bfloat16).reshape(1, 8)
        assert equal(model(value), float8_model(scheme)(value))
        entries = {entry.name: entry for entry in lease.manifest.tensors}
        assert entries["body.0.weight"].dtype == "torch.float8_e4m3fn"
        assert entries["body.0.weight"].role == "float8_weight"
        assert entries["body.0.weight_scale"].role == "float8_scale"
        assert entries["norm.weight"].dtype == "torch.float32"
        assert isinstance(model.body[0], Float8Linear)
        assert lease.copied_bytes == 0
        del model


def test_the_two_representations_never_share_a_key(world: World) -> None:
    keys = {context(world, scheme).identity.key for scheme in SCHEMES}
    assert len(keys | {world.context().identity.key}) == 3


def test_a_producer_makes_its_own_representation_alone(world: World) -> None:
    scheme = Float8Scheme.PER_TENSOR
    for producer, foreign in [
        (FinalLayoutBF16Producer, context(world, scheme)),
        (FinalLayoutFloat8Producer, world.context()),
    ]:
        with pytest.raises(WeightLeaseError) as caught:
            producer(foreign, finished())
        assert caught.value.failure.code is FailureCode.PRODUCER_UNSUPPORTED
    with pytest.raises(WeightLeaseError):
        FinalLayoutFloat8Restorer(world.context())


def test_a_bf16_layout_holds_no_fp8_weight(world: World) -> None:
    with pytest.raises(ContractViolation) as caught:
        world.context(float8_skeleton(Float8Scheme.PER_TENSOR))
    assert caught.value.reason is Violation.DTYPE_UNSUPPORTED


@pytest.mark.parametrize("damage", ["no-fp8", "no-scale", "other-shape"])
def test_a_model_whose_scales_do_not_fit_is_refused(world: World, damage: str) -> None:
    scheme = Float8Scheme.PER_TENSOR
    model = skeleton() if damage == "no-fp8" else float8_skeleton(scheme)
    if damage == "no-scale":
        del model.body[0].weight_scale
    elif damage == "other-shape":
        model.body[0].weight_scale = torch.empty(2, device="meta")
    with pytest.raises(ContractViolation) as caught:
        FinalLayoutContext.of(REQUEST, world.source, model, FINAL_LAYOUT_FLOAT8[scheme], CONTRACT)
    assert caught.value.reason is Violation.TENSOR_CONTRACT_CHANGED


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_scale_that_is_not_finite_and_positive_is_never_committed(
    world: World, value: float
) -> None:
    scheme = Float8Scheme.PER_TENSOR
    model = float8_model(scheme)
    model.body[0].register_buffer("weight_scale", torch.tensor(value))
    producer = FinalLayoutFloat8Producer(context(world, scheme), model)
    built = world.store.get_or_build(producer)
    assert built.lease is not None
    restorer = FinalLayoutFloat8Restorer(context(world, scheme))
    target = float8_skeleton(scheme)
    with built.lease as lease, pytest.raises(ContractViolation, match="finite and positive"):
        restorer.plan_restore(target, lease)
    assert target.embed.weight.is_meta


def test_scales_that_were_narrowed_are_not_published(world: World) -> None:
    scheme = Float8Scheme.PER_BLOCK
    model = float8_model(scheme)
    model.body[0].to(torch.bfloat16)
    with pytest.raises(WeightLeaseError):
        FinalLayoutFloat8Producer(context(world, scheme), model).total_bytes  # noqa: B018 - checks


def test_a_tied_weight_is_not_quantised(world: World) -> None:
    with pytest.raises(ContractViolation) as caught:
        quantize_linears(finished(), ["embed"], Float8Scheme.PER_TENSOR)
    assert caught.value.reason is Violation.OWNERSHIP_AMBIGUOUS
    with pytest.raises(ContractViolation, match="no linear layer matches"):
        quantize_linears(finished(), ["absent.*"], Float8Scheme.PER_TENSOR)


def test_the_plain_restorer_reads_fp8_only_by_its_own_schema(world: World) -> None:
    scheme = Float8Scheme.PER_TENSOR
    with published(world, scheme) as lease:
        other = replace(context(world, scheme), spec=FINAL_LAYOUT_FLOAT8[Float8Scheme.PER_BLOCK])
        with pytest.raises(ContractViolation):
            FinalLayoutTensorRestorer(other).plan_restore(float8_skeleton(scheme), lease)
    assert world.store.lookup(world.context().identity).status is StoreStatus.MISS
