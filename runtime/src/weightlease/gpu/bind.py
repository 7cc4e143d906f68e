"""Modules onto shared memory and off again.

`move` puts a loaded module's registered tensors into an arena; `bind` puts an arena's tensors into
a module built on `meta`. Both keep which names are one tensor and which tensors share bytes.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import torch
from torch import nn

from weightlease.gpu.arena import Arena
from weightlease.gpu.device import Device
from weightlease.gpu.errors import LayoutMismatchError, UnsupportedError
from weightlease.gpu.layout import (
    ITEM_SIZE,
    ModelLayout,
    differences,
    place_blocks,
    used_bytes,
)
from weightlease.gpu.registered import DTYPES, Registry, registry
from weightlease.gpu.support import require_supported_modules

# The peak while weights move is one step above them; each step costs every attach about 0.1 ms.
MOVING_SEGMENTS = 6
_SCAN_DEPTH = 4
_ATOMS = frozenset({bool, int, float, str, type(None)})
# tables of registered things and of hooks, which every module has
_EVERY_MODULES = frozenset(nn.Module().__dict__)


def move(model: nn.Module, device: Device) -> tuple[Arena, ModelLayout]:
    """Move every registered tensor of `model` into a new arena on the same device.

    The tensor objects stay, so ties and references to parameters do too; addresses change, which
    breaks captured graphs and saved pointers. Memory of the old place is free for reuse as it goes.

    Raises:
        DeviceError: the device has no room; the model is whole, partly in the arena.

    """
    found = registry(model)
    blocks = place_blocks([block.nbytes for block in found.layout.blocks])
    arena = Arena(device, used_bytes(blocks), segments=MOVING_SEGMENTS)
    layout = msgspec.structs.replace(found.layout, blocks=blocks, nbytes=arena.nbytes)
    views = arena_views(layout, arena.tensor)
    members: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for entry, tensor, view in zip(found.entries, layout.tensors, views, strict=True):
        members.setdefault(tensor.block, []).append((entry.tensor, view))
    spans = found.spans
    del found
    for number, (block, span) in enumerate(zip(blocks, spans, strict=True)):
        _make_room(device, arena, block.offset + block.nbytes)
        source = _bytes_of(span.tensor, span.begin, span.end)
        arena.tensor[block.offset : block.offset + block.nbytes].copy_(source)
        del source
        for moved, view in members.pop(number, ()):
            moved.data = view
    arena.grow(arena.nbytes)
    device.synchronize()
    give_back_cache(device)
    return arena, layout


def _make_room(device: Device, arena: Arena, end: int) -> None:
    if end > arena.grown_bytes:
        give_back_cache(device)
    arena.grow(end)


def give_back_cache(device: Device) -> None:
    """What torch's allocator keeps for later; without this the device would hold things twice."""
    if device.torch_device.type == "cuda":
        torch.cuda.empty_cache()


def _bytes_of(tensor: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return flat.set_(tensor.untyped_storage(), begin, (end - begin,), (1,))


def arena_views(layout: ModelLayout, base: torch.Tensor) -> list[torch.Tensor]:
    """One view over `base`, flat uint8, per tensor of the layout, in its order."""
    typed = {name: base.view(DTYPES[name]) for name in {each.dtype for each in layout.tensors}}
    places = [block.offset for block in layout.blocks]
    # Nothing is to be recorded for a backward pass, which takes as long as making the view.
    with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 - as custom operators do
        return [
            typed[tensor.dtype].as_strided(
                tensor.shape,
                tensor.stride,
                (places[tensor.block] + tensor.shift) // ITEM_SIZE[tensor.dtype],
            )
            for tensor in layout.tensors
        ]


def registered_on_meta(model: nn.Module, layout: ModelLayout) -> Registry:
    """The registry of a module built on meta, which agrees completely with `layout`.

    Raises:
        LayoutMismatchError: every difference, complete, before anything was bound.
        UnsupportedError: the module has a feature that is not shared, a registered tensor that is
            not on meta, or one on meta that nobody registers.

    """
    found = registry(model)
    require_supported_modules(found.modules)
    different = differences(found.layout, layout)
    if different:
        raise LayoutMismatchError(different)
    elsewhere = [entry.name for entry in found.entries if not entry.tensor.is_meta]
    if elsewhere:
        raise UnsupportedError(
            "materialised_parameter",
            f"the factory made {elsewhere[0]} on a device; registered tensors stay on meta",
        )
    loose = sorted(unregistered_on_meta(found.modules))
    if loose:
        raise UnsupportedError(
            "unregistered_meta_tensor",
            f"the factory left {', '.join(loose[:5])} on meta, which no module registers; register "
            "it as a buffer, or make it outside the meta context",
        )
    return found


class Binding:
    """A module's registered tensors over mapped memory; `release` puts meta tensors back."""

    def __init__(self, found: Registry, views: Iterable[torch.Tensor]) -> None:
        """Bind; `views` follow the registry's entries, one view for each name's tensor."""
        # Straight into the tables: the whole layout was compared, so nothing is checked again.
        self._before = found.entries
        self._bound: list[tuple[str, weakref.ref[torch.Tensor]]] = []
        made: dict[int, torch.Tensor] = {}
        make, parameter = torch.Tensor._make_subclass, nn.Parameter  # noqa: SLF001 - as nn.Parameter
        for entry, view in zip(found.entries, views, strict=True):
            original = entry.tensor
            bound = made.get(id(original))
            if bound is None:
                bound = (
                    make(parameter, view, original.requires_grad)
                    if type(original) is parameter
                    else view.detach()
                )
                made[id(original)] = bound
                self._bound.append((entry.name, weakref.ref(bound)))
            entry.table[entry.key] = bound

    def release(self) -> tuple[str, ...]:
        """Put the meta tensors back; names of bound tensors that somebody still refers to.

        Idempotent. The module's own references are gone afterwards in any case.
        """
        for entry in self._before:
            entry.table[entry.key] = entry.tensor
        return tuple(sorted(name for name, bound in self._bound if bound() is not None))


def unregistered_on_meta(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[str]:
    """Places in modules, each with its path, that hold a meta tensor which none registers."""
    for path, module in modules:
        own = module.__dict__
        for key in own.keys() - _EVERY_MODULES:
            value = own[key]
            if type(value) not in _ATOMS:
                yield from _meta_tensors(f"{path}.{key}" if path else key, value, _SCAN_DEPTH)


def _meta_tensors(place: str, value: object, depth: int) -> Iterator[str]:
    if isinstance(value, torch.Tensor):
        if value.is_meta:
            yield place
    elif depth and isinstance(value, dict):
        for key, item in value.items():
            yield from _meta_tensors(f"{place}[{key!r}]", item, depth - 1)
    elif depth and isinstance(value, list | tuple | set | frozenset):
        for number, item in enumerate(value):
            yield from _meta_tensors(f"{place}[{number}]", item, depth - 1)


def tensors_in(regions: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Region and first byte in it of every Python tensor over one of `regions`: (address, nbytes).

    Looks at every object the collector knows, so only where something is known to live.
    """
    for candidate in gc.get_objects():
        if not issubclass(type(candidate), torch.Tensor) or not _has_memory(candidate):
            continue
        for number, (address, nbytes) in enumerate(regions):
            if 0 <= candidate.data_ptr() - address < nbytes:
                yield number, candidate.data_ptr() - address


def _has_memory(tensor: torch.Tensor) -> bool:
    try:
        return not tensor.is_meta and tensor.layout == torch.strided and tensor.data_ptr() != 0
    except RuntimeError:  # tensors without storage, such as functorch's
        return False
