"""Which dtype and role each tensor has in a representation: one policy per representation."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from weightlease.identity import Representation
from weightlease.manifest import TensorKind
from weightlease.restore.contract import FinalLayoutModelContract
from weightlease.restore.violation import ContractViolation, Violation

_NARROWED = {"torch.bfloat16", "torch.float16", "torch.float32"}
_KEPT = {
    *("torch.bool", "torch.uint8", "torch.int8", "torch.int16"),
    *("torch.int32", "torch.int64", "torch.uint16", "torch.uint32", "torch.uint64"),
}


class RepresentationPolicy(Protocol):
    """Says for each tensor of a model skeleton what the artifact holds."""

    @property
    def representation(self) -> Representation:
        """The name under which it enters identities."""

    def dtype(self, name: str, skeleton: str, contract: FinalLayoutModelContract) -> str:
        """Final dtype of `name`, as str(torch.dtype); `skeleton` is what the model has now.

        Raises:
            ContractViolation: a dtype that this representation does not hold.

        """

    def role(self, name: str, dtype: str, kind: TensorKind) -> str:
        """What a tensor of this name, final dtype and kind is."""

    def check(self, targets: Sequence[FinalTensor]) -> None:
        """Check what only all tensors together show.

        Raises:
            ContractViolation: the tensors are no layout of this representation.

        """


class FinalTensor(Protocol):
    """What a policy sees of a tensor."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...


class BFloat16PreservingFloat32:
    """Floats become BF16, those that the contract names stay float32, integers stay as they are."""

    representation = Representation("runtime-bf16-preserved-fp32", "BF16")

    def dtype(self, name: str, skeleton: str, contract: FinalLayoutModelContract) -> str:
        """See `RepresentationPolicy.dtype`."""
        if skeleton in _KEPT:
            return skeleton
        if skeleton not in _NARROWED:
            raise ContractViolation(
                Violation.DTYPE_UNSUPPORTED,
                f"tensor {name!r} has dtype {skeleton}, which {self.representation.name!r} lacks",
                tensor=name,
            )
        return "torch.float32" if contract.preserves_float32(name) else "torch.bfloat16"

    def role(self, name: str, dtype: str, kind: TensorKind) -> str:  # noqa: ARG002 - the dtype tells
        """See `RepresentationPolicy.role`."""
        if kind is TensorKind.BUFFER:
            return "persistent_buffer"
        return "preserved_float32" if dtype == "torch.float32" else "weight"

    def check(self, targets: Sequence[FinalTensor]) -> None:
        """Every tensor stands for itself."""


FLOAT8 = "torch.float8_e4m3fn"
SCALE_SUFFIX = "weight_scale"
BLOCK = 128


class Float8Scheme(StrEnum):
    """How many weights share a scale."""

    PER_TENSOR = "per_tensor"
    PER_BLOCK = "per_block"


class Float8WithGeneratedScales:
    """Weights in e4m3 beside their float32 scales; all else as in `BFloat16PreservingFloat32`.

    `<module>.weight` in FP8 has `<module>.weight_scale`: a scalar, or one value per block of 128 by
    128, so that weight = value * scale.
    """

    def __init__(self, scheme: Float8Scheme) -> None:
        self.scheme = scheme
        self._rest = BFloat16PreservingFloat32()
        block = BLOCK if scheme is Float8Scheme.PER_BLOCK else 0
        self.representation = Representation(
            f"runtime-fp8-e4m3-{scheme.replace('_', '-')}",
            "F8_E4M3",
            {"scheme": str(scheme), "scale_dtype": "F32", "block": block},
        )

    def dtype(self, name: str, skeleton: str, contract: FinalLayoutModelContract) -> str:
        """See `RepresentationPolicy.dtype`."""
        if skeleton == FLOAT8:
            return skeleton
        if name.endswith(f".{SCALE_SUFFIX}"):
            return "torch.float32"
        return self._rest.dtype(name, skeleton, contract)

    def role(self, name: str, dtype: str, kind: TensorKind) -> str:
        """See `RepresentationPolicy.role`."""
        if dtype == FLOAT8:
            return "float8_weight"
        if name.endswith(f".{SCALE_SUFFIX}"):
            return "float8_scale"
        return self._rest.role(name, dtype, kind)

    def check(self, targets: Sequence[FinalTensor]) -> None:
        """Every FP8 weight has a scale of its shape, and every scale a weight."""
        by_name = {target.name: target for target in targets}
        wanted = {
            f"{target.name.removesuffix('weight')}{SCALE_SUFFIX}": self.scale_shape(target.shape)
            for target in targets
            if target.dtype == FLOAT8
        }
        scales = {name for name in by_name if name.endswith(f".{SCALE_SUFFIX}")}
        lonely = sorted(scales ^ wanted.keys())
        if not wanted or lonely:
            raise ContractViolation(
                Violation.TENSOR_CONTRACT_CHANGED,
                f"{len(wanted)} weights are FP8; without its counterpart is {lonely[:3]}",
            )
        for name, shape in wanted.items():
            if by_name[name].shape != shape:
                raise ContractViolation(
                    Violation.TENSOR_CONTRACT_CHANGED,
                    f"{name!r} has shape {by_name[name].shape}, {self.scheme} needs {shape}",
                    tensor=name,
                )

    def scale_shape(self, weight: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the scales of a weight of this shape."""
        if self.scheme is Float8Scheme.PER_TENSOR:
            return ()
        return tuple(-(-size // BLOCK) for size in weight)
