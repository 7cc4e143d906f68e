"""What a model owns: every parameter and persistent buffer, from a CPU or a meta skeleton alike.

    digest = sha256(canonical JSON of [{name, kind, role, shape, dtype, stride, aliases}, ...])

sorted by name. A tensor that several modules hold (tied weights) has one owner, the first name in
registration order; the others are its aliases. Two distinct tensors over one memory have no owner
and are refused, as is whatever is not a plain, contiguous tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from weightlease.canonical import canonical_json, sha256_hex
from weightlease.manifest import TensorKind, contiguous_stride
from weightlease.restore.contract import FinalLayoutModelContract
from weightlease.restore.representation import RepresentationPolicy
from weightlease.restore.slots import Slot, slots_of
from weightlease.restore.violation import ContractViolation, Violation

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Target:
    """One tensor that the artifact holds: its final form, and every slot it goes into."""

    name: str
    kind: TensorKind
    role: str
    shape: tuple[int, ...]
    dtype: str
    slots: tuple[Slot, ...]

    @property
    def stride(self) -> tuple[int, ...]:
        """Strides in elements; final layouts are contiguous."""
        return contiguous_stride(self.shape)

    def to_dict(self) -> dict[str, object]:
        """What enters the digest."""
        return {
            "name": self.name,
            "kind": str(self.kind),
            "role": self.role,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "stride": list(self.stride),
            "aliases": [slot.name for slot in self.slots[1:]],
        }


@dataclass(frozen=True)
class Ownership:
    """Everything a model owns, sorted by name; `derived` are its non-persistent buffers."""

    targets: tuple[Target, ...]
    derived: tuple[Slot, ...]

    @property
    def digest(self) -> str:
        """The tensor ownership digest."""
        return sha256_hex(canonical_json([target.to_dict() for target in self.targets]))

    def by_name(self) -> dict[str, Target]:
        """Targets by the name of their owner."""
        return {target.name: target for target in self.targets}


def collect(
    model: torch.nn.Module, contract: FinalLayoutModelContract, policy: RepresentationPolicy
) -> Ownership:
    """List what `model` owns; nothing is changed.

    Raises:
        ContractViolation: ownership_ambiguous, tensor_unsupported, dtype_unsupported, or
            model_contract_unsupported where the contract's own check fails.

    """
    grouped: dict[int, list[Slot]] = {}
    derived: list[Slot] = []
    _require_no_extra_state(model)
    for slot in slots_of(model):
        if slot.persistent:
            grouped.setdefault(id(slot.tensor), []).append(slot)
        else:
            derived.append(slot)
    targets = [_target(slots, contract, policy) for slots in grouped.values()]
    if not targets:
        raise ContractViolation(Violation.TENSOR_UNSUPPORTED, "the model owns no tensor")
    _require_separate_memory(targets)
    policy.check(targets)
    found = Ownership(tuple(sorted(targets, key=lambda target: target.name)), tuple(derived))
    try:
        contract.structure(found)
    except ValueError as error:
        raise ContractViolation(
            Violation.MODEL_CONTRACT_UNSUPPORTED,
            f"the model is not what contract {contract.implementation_id!r} describes: {error}",
        ) from error
    return found


def _require_no_extra_state(model: torch.nn.Module) -> None:
    import torch

    for path, module in model.named_modules():
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
            raise ContractViolation(
                Violation.TENSOR_UNSUPPORTED,
                f"module {path!r} has an extra state, which no tensor of an artifact holds",
                module=path,
            )


def _target(
    slots: list[Slot], contract: FinalLayoutModelContract, policy: RepresentationPolicy
) -> Target:
    owner = slots[0]
    tensor = owner.tensor
    if tensor is None:
        raise AssertionError(owner.name)
    _require_plain(owner.name, tensor)
    kinds = {slot.kind for slot in slots}
    if len(kinds) > 1:
        raise ContractViolation(
            Violation.OWNERSHIP_AMBIGUOUS,
            f"tensor {owner.name!r} is a parameter here and a buffer there",
            tensor=owner.name,
        )
    dtype = policy.dtype(owner.name, str(tensor.dtype), contract)
    return Target(
        owner.name,
        owner.kind,
        policy.role(owner.name, dtype, owner.kind),
        tuple(tensor.shape),
        dtype,
        tuple(slots),
    )


def _require_plain(name: str, tensor: torch.Tensor) -> None:
    import torch

    problem = ""
    if torch.nn.parameter.is_lazy(tensor):
        problem = "is not initialised"
    elif type(tensor) not in {torch.Tensor, torch.nn.Parameter}:
        problem = f"is a {type(tensor).__name__}"
    elif tensor.layout is not torch.strided:
        problem = f"has layout {tensor.layout}"
    elif not tensor.is_contiguous():
        problem = "is not contiguous"
    if problem:
        raise ContractViolation(
            Violation.TENSOR_UNSUPPORTED,
            f"tensor {name!r} {problem}; a final layout holds plain, contiguous tensors",
            tensor=name,
        )


def _require_separate_memory(targets: list[Target]) -> None:
    """A skeleton on `meta` has no memory, so there only ties by object can be seen."""
    owner: dict[int, str] = {}
    for target in targets:
        tensor = target.slots[0].tensor
        if tensor is None or tensor.is_meta or tensor.numel() == 0:
            continue
        first = owner.setdefault(tensor.untyped_storage().data_ptr(), target.name)
        if first != target.name:
            raise ContractViolation(
                Violation.OWNERSHIP_AMBIGUOUS,
                f"tensors {first!r} and {target.name!r} are views of one memory; tie them by "
                "sharing one parameter, or copy one of them",
                tensor=target.name,
            )
