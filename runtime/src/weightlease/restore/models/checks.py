"""What contracts check alike: stacks of blocks, and dtypes of finished models."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from weightlease.restore.contract import FinalLayoutModelContract
from weightlease.restore.ownership import Ownership
from weightlease.restore.representation import SCALE_SUFFIX
from weightlease.restore.slots import slots_of

if TYPE_CHECKING:
    import torch


def stack_depth(ownership: Ownership, stack: str) -> int:
    """Number of blocks in `stack`, which are numbered from 0 without a gap.

    Raises:
        ValueError: there is none, or one is missing.

    """
    pattern = re.compile(rf"{re.escape(stack)}\.(\d+)\.")
    names = [target.name for target in ownership.targets]
    numbers = {int(found[1]) for found in map(pattern.match, names) if found}
    if not numbers or numbers != set(range(len(numbers))):
        raise ValueError(f"stack {stack!r} has the blocks {sorted(numbers)}")
    return len(numbers)


def require_depth(ownership: Ownership, stack: str, depth: int) -> None:
    """Check that `stack` has `depth` blocks.

    Raises:
        ValueError: it has another number.

    """
    found = stack_depth(ownership, stack)
    if found != depth:
        raise ValueError(f"stack {stack!r} has {found} blocks and must have {depth}")


def preserved_float32(
    float32: tuple[str, ...],
) -> Callable[[torch.nn.Module], None]:
    """A validator: what `float32` names is float32, and of the rest nothing but scales is.

    Which narrow dtype the rest has is the representation's to say.
    """
    named = FinalLayoutModelContract("patterns", "1", float32)

    def validate(model: torch.nn.Module) -> None:
        for slot in slots_of(model):
            tensor = slot.tensor
            if tensor is None or not slot.persistent or not tensor.is_floating_point():
                continue
            wide = named.preserves_float32(slot.name) or slot.leaf == SCALE_SUFFIX
            if (str(tensor.dtype) == "torch.float32") != wide:
                wanted = "float32" if wide else "narrower"
                raise ValueError(f"{slot.name!r} is {tensor.dtype} and must be {wanted}")

    return validate
