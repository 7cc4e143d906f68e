"""FP8 (e4m3) linear layers with generated scales, and the restorer that puts them back.

    per tensor   scale = max |weight| / 448
    per block    the same for each block of 128 by 128; blocks at the edge are smaller

    value = weight / scale, rounded to nearest even, so that weight = value * scale

A weight of zeros has scale 1. Computed in float32 on the device of the weight; no activation is
quantised. Imports torch: nothing that must work without it imports this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch

from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.lease import WeightLease
from weightlease.restore.context import FinalLayoutContext
from weightlease.restore.representation import (
    BLOCK,
    SCALE_SUFFIX,
    Float8Scheme,
    Float8WithGeneratedScales,
)
from weightlease.restore.restorer import FinalLayoutTensorRestorer, RestorePlan
from weightlease.restore.violation import ContractViolation, Violation

LARGEST = 448.0


class Float8Linear(torch.nn.Module):
    """A linear layer whose weight is FP8; computes in the dtype of its input."""

    weight: torch.nn.Parameter
    weight_scale: torch.Tensor
    bias: torch.nn.Parameter | None

    def __init__(
        self, weight: torch.Tensor, scale: torch.Tensor, bias: torch.nn.Parameter | None
    ) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.register_buffer(SCALE_SUFFIX, scale)
        self.register_parameter("bias", bias)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Shape (…, in) to (…, out)."""
        weight = dequantized(self.weight, self.weight_scale, value.dtype)
        return torch.nn.functional.linear(value, weight, self.bias)


def quantize_linears(
    model: torch.nn.Module, patterns: Sequence[str], scheme: Float8Scheme
) -> tuple[str, ...]:
    """Replace linear layers that match shell `patterns` by FP8 ones, in place; returns their names.

    Works on a skeleton on `meta` too, where there are shapes and no values.

    Raises:
        ContractViolation: no linear layer matches, or one shares its weight with another module.

    """
    shared = _shared_parameters(model)
    names = tuple(
        name
        for name, module in model.named_modules()
        if type(module) is torch.nn.Linear and any(fnmatchcase(name, each) for each in patterns)
    )
    if not names:
        raise ContractViolation(
            Violation.MODEL_CONTRACT_UNSUPPORTED, f"no linear layer matches {list(patterns)}"
        )
    for name in names:
        linear = model.get_submodule(name)
        weight = linear.get_parameter("weight")
        if id(weight) in shared:
            raise ContractViolation(
                Violation.OWNERSHIP_AMBIGUOUS,
                f"the weight of {name!r} is tied to another module, which would not be FP8",
                tensor=f"{name}.weight",
            )
        value, scale = quantized(weight.detach(), scheme)
        bias = linear._parameters["bias"]  # noqa: SLF001 - None where there is no bias
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, Float8Linear(value, scale, bias))
    return names


def quantized(weight: torch.Tensor, scheme: Float8Scheme) -> tuple[torch.Tensor, torch.Tensor]:
    """FP8 values and float32 scales of a matrix; of one on `meta`, their shapes alone."""
    if weight.is_meta:
        shape = Float8WithGeneratedScales(scheme).scale_shape(tuple(weight.shape))
        scale = torch.empty(shape, dtype=torch.float32, device="meta")
        return torch.empty_like(weight, dtype=torch.float8_e4m3fn), scale
    wide = weight.float()
    if scheme is Float8Scheme.PER_TENSOR:
        scale = _scale(wide.abs().amax())
        spread = scale
    else:
        scale = _scale(_block_maxima(wide))
        spread = _spread(scale, wide.shape)
    value = (wide / spread).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return value, scale


def dequantized(value: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The matrix that FP8 `value` and `scale` stand for."""
    spread = scale if scale.ndim == 0 else _spread(scale, value.shape)
    return (value.float() * spread).to(dtype)


class FinalLayoutFloat8Restorer(FinalLayoutTensorRestorer):
    """Restores FP8 layouts alone, and looks at their scales before anything is changed."""

    def __init__(self, context: FinalLayoutContext) -> None:
        if not isinstance(context.spec.policy, Float8WithGeneratedScales):
            raise WeightLeaseError.of(
                Stage.RESTORATION,
                FailureCode.UNSUPPORTED,
                f"this restorer reads FP8, the context names {context.spec.producer_id!r}",
            )
        super().__init__(context)

    def plan_restore(self, model: torch.nn.Module, lease: WeightLease) -> RestorePlan:
        """See `FinalLayoutTensorRestorer.plan_restore`; a scale is finite and positive."""
        plan = super().plan_restore(model, lease)
        for name in lease.names():
            if not name.endswith(f".{SCALE_SUFFIX}"):
                continue
            scale = lease.tensor(name)
            if not bool((torch.isfinite(scale) & (scale > 0)).all()):
                raise ContractViolation(
                    Violation.TENSOR_UNSUPPORTED,
                    f"scale {name!r} holds a value that is not finite and positive",
                    tensor=name,
                )
        return plan


def _scale(maximum: torch.Tensor) -> torch.Tensor:
    return torch.where(maximum > 0, maximum / LARGEST, torch.ones_like(maximum))


def _block_maxima(wide: torch.Tensor) -> torch.Tensor:
    rows, columns = wide.shape
    padded = torch.nn.functional.pad(wide.abs(), (0, -columns % BLOCK, 0, -rows % BLOCK))
    blocks = padded.reshape(padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK)
    return blocks.amax(dim=(1, 3))


def _spread(scale: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    rows = scale.repeat_interleave(BLOCK, 0)[: shape[0]]
    return rows.repeat_interleave(BLOCK, 1)[:, : shape[1]]


def _shared_parameters(model: torch.nn.Module) -> set[int]:
    seen: set[int] = set()
    shared: set[int] = set()
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            (shared if id(parameter) in seen else seen).add(id(parameter))
    return shared
