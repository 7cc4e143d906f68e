"""The places in modules that hold tensors. torch has no public way to them that keeps ties."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weightlease.manifest import TensorKind

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Slot:
    """One place in one module; `name` is its path from the model's root."""

    name: str
    module: torch.nn.Module
    leaf: str
    kind: TensorKind
    persistent: bool = True

    @property
    def tensor(self) -> torch.Tensor | None:
        """What the place holds now."""
        if self.kind is TensorKind.BUFFER:
            return self.module._buffers.get(self.leaf)  # noqa: SLF001 - see above
        return self.module._parameters.get(self.leaf)  # noqa: SLF001 - see above

    @property
    def is_meta(self) -> bool:
        """Whether the place holds a tensor without memory."""
        return self.tensor is not None and self.tensor.is_meta

    def put(self, value: torch.Tensor) -> None:
        """Hold `value` from now on; a parameter's place takes a parameter."""
        import torch

        if self.kind is TensorKind.BUFFER:
            self.module._buffers[self.leaf] = value  # noqa: SLF001 - see above
        elif isinstance(value, torch.nn.Parameter):
            self.module._parameters[self.leaf] = value  # noqa: SLF001 - see above
        else:
            raise TypeError(f"{self.name!r} is the place of a parameter")


def slots_of(model: torch.nn.Module) -> Iterator[Slot]:
    """Every place that holds a tensor, in registration order; shared modules under each name."""
    for path, module in model.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for leaf, parameter in module._parameters.items():  # noqa: SLF001 - see above
            if parameter is not None:
                yield Slot(prefix + leaf, module, leaf, TensorKind.PARAMETER)
        left_out = module._non_persistent_buffers_set  # noqa: SLF001 - see above
        for leaf, buffer in module._buffers.items():  # noqa: SLF001 - see above
            if buffer is not None:
                yield Slot(prefix + leaf, module, leaf, TensorKind.BUFFER, leaf not in left_out)
