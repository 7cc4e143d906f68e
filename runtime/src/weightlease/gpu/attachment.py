"""A model on shared memory for the length of a `with` block.

On exit: synchronise, bind the meta tensors back, let go of the memory. It is unmapped with the last
tensor over it; where some live on outside, they are named in an error and stay valid.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import torch
from torch import nn
from torch.multiprocessing import reductions

from weightlease.gpu.bind import Binding, tensors_in
from weightlease.gpu.device import Device
from weightlease.gpu.errors import LiveTensorsError
from weightlease.gpu.layout import ModelLayout
from weightlease.gpu.registered import Registry

ModuleT = TypeVar("ModuleT", bound=nn.Module)


@dataclass(frozen=True)
class Region:
    """One run of mapped memory, seen weakly: the storage over it and which names lie where."""

    storage: Any
    address: int
    nbytes: int
    names_at: Callable[[int], Sequence[str]]

    @classmethod
    def of(cls, storage: torch.UntypedStorage, names_at: Callable[[int], Sequence[str]]) -> Region:
        """The region that `storage` covers; does not keep it alive."""
        weak: Any = reductions
        return cls(weak.StorageWeakRef(storage), storage.data_ptr(), storage.nbytes(), names_at)

    @property
    def lives(self) -> bool:
        """Whether a tensor over it exists."""
        return not self.storage.expired()


# Leases of memory that still has tensors: the donor must not think that it is free.
_outlived: list[list[Callable[[], object]]] = []


class Attachment(Generic[ModuleT]):
    """A model bound to shared weights; leave the block before the weights' tensors are dropped."""

    def __init__(
        self,
        device: Device,
        model: ModuleT,
        found: Registry,
        layout: ModelLayout,
        views: Iterable[torch.Tensor],
        regions: Sequence[Region],
    ) -> None:
        self.model = model
        self.layout = layout
        self._device = device
        self._regions = tuple(regions)
        self._binding: Binding | None = Binding(found, views)
        self._after: list[Callable[[], object]] = []
        self.donor = ""
        self.construct_seconds = 0.0

    def afterwards(self, call: Callable[[], object]) -> None:
        """Call `call` at the end if nothing lives on; otherwise never, until the process ends."""
        self._after.append(call)

    def detach(self) -> tuple[str, ...]:
        """Give the memory back; returns the names of tensors that live on. Idempotent."""
        binding, self._binding = self._binding, None
        if binding is None:
            return ()
        try:
            self._device.synchronize()
        finally:
            kept = binding.release()
            del binding
        if self._nothing_lives():
            for call in self._after:
                call()
            return ()
        _outlived.append(self._after)
        return self._names(kept)

    def _nothing_lives(self) -> bool:
        if not any(region.lives for region in self._regions):
            return True
        # Only cycles that nobody can reach may hold it.
        gc.collect()
        return not any(region.lives for region in self._regions)

    def _names(self, kept: Sequence[str]) -> tuple[str, ...]:
        living = [region for region in self._regions if region.lives]
        found = set(kept)
        regions = [(region.address, region.nbytes) for region in living]
        for number, offset in tensors_in(regions):
            found.update(living[number].names_at(offset))
        # What only C++ holds, such as tensors saved for a backward pass, has no name to be found.
        return tuple(sorted(found)) or ("a tensor that no Python object holds",)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        names = self.detach()
        if not names:
            return
        if error is None:
            raise LiveTensorsError(names)
        # The error on its way keeps the frames that failed, and so their tensors.
        error.add_note(f"mapped tensors live on with this error: {', '.join(names[:5])}")


def arena_region(base: torch.Tensor, layout: ModelLayout) -> Region:
    """The one region of an arena that `base`, flat uint8, covers."""

    def names_at(offset: int) -> Sequence[str]:
        return sorted(layout.names_in(offset, offset + 1))[:1]

    return Region.of(base.untyped_storage(), names_at)
