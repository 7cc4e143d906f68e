"""Which dtype and role each tensor has in a representation: one policy per representation."""

from __future__ import annotations

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

    def role(self, dtype: str, kind: TensorKind) -> str:
        """What a tensor of this final dtype and kind is."""


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

    def role(self, dtype: str, kind: TensorKind) -> str:
        """See `RepresentationPolicy.role`."""
        if kind is TensorKind.BUFFER:
            return "persistent_buffer"
        return "preserved_float32" if dtype == "torch.float32" else "weight"
