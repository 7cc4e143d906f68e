"""Making a model that was half restored impossible to use by mistake.

Its tensors go to `meta`, so that no arithmetic can read a mixture and no lease is kept; and calling
it, saving it or loading into it says what happened and that a fresh model is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.manifest import TensorKind
from weightlease.restore.slots import slots_of
from weightlease.restore.violation import ContractViolation, Violation

if TYPE_CHECKING:
    import torch

_MARK = "_weightlease_unusable"


def commit_failure(why: str) -> WeightLeaseError:
    """The failure of a restore that had begun to change its model."""
    return WeightLeaseError.of(
        Stage.RESTORATION,
        FailureCode.RESTORE_COMMIT_FAILED,
        f"the restore failed after it began and its model is unusable: {why}; discard it and build "
        "a fresh one",
    )


def make_unusable(model: torch.nn.Module, why: str) -> None:
    """Take every tensor from `model` and let every use of it raise `restore_commit_failed`."""
    import torch

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise commit_failure(why)

    setattr(model, _MARK, why)
    for module in model.modules():
        module.register_forward_pre_hook(refuse)
    for slot in list(slots_of(model)):
        if slot.tensor is None:
            continue
        empty = torch.empty_like(slot.tensor, device="meta")
        if slot.kind is TensorKind.PARAMETER:
            empty = torch.nn.Parameter(empty, requires_grad=False)
        slot.put(empty)
    # torch leaves these two untyped
    for register in (model.register_state_dict_pre_hook, model.register_load_state_dict_pre_hook):
        hook: Any = register
        hook(refuse)


def require_usable(model: torch.nn.Module) -> None:
    """Check that no commit failed on `model`.

    Raises:
        ContractViolation: model_unusable.

    """
    why = getattr(model, _MARK, "")
    if why:
        raise ContractViolation(
            Violation.MODEL_UNUSABLE,
            f"an earlier restore failed on this model: {why}; build a fresh one",
        )
