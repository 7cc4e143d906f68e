"""What a module registers: every parameter and buffer under every name, and its layout.

Works alike on real and on meta tensors, so both sides compute the same thing from their own module.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from weightlease.gpu.errors import UnsupportedError
from weightlease.gpu.layout import (
    ITEM_SIZE,
    LAYOUT_VERSION,
    Block,
    ModelLayout,
    TensorLayout,
    extent,
)
from weightlease.manifest import TensorKind

_DTYPE_NAMES = {
    dtype: name
    for name in ITEM_SIZE
    if isinstance(dtype := getattr(torch, name, None), torch.dtype)
}
DTYPES = {name: dtype for dtype, name in _DTYPE_NAMES.items()}
_MAX_DEPTH = 200


@dataclass(frozen=True, slots=True)
class Registered:
    """One name: the module that registers it, under what key, and the tensor."""

    name: str
    module: nn.Module
    key: str
    kind: TensorKind
    persistent: bool
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class Span:
    """A block in the source: bytes `begin`..`end` of the storage of `tensor`."""

    tensor: torch.Tensor
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Registry:
    """A module's names sorted, its layout without a place in an arena, and its blocks' sources."""

    entries: tuple[Registered, ...]
    layout: ModelLayout
    spans: tuple[Span, ...]


def class_name(module: nn.Module) -> str:
    """`module.qualified name` of its class."""
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}"


def registry(model: nn.Module) -> Registry:
    """Everything `model` registers, with its complete layout.

    Raises:
        UnsupportedError: a tensor has a dtype that has no name here.

    """
    entries = tuple(sorted(_walk(model, "", 0), key=lambda entry: entry.name))
    first: dict[int, int] = {}
    for number, entry in enumerate(entries):
        first.setdefault(id(entry.tensor), number)
    spans, located = _blocks([entries[number] for number in first.values()])
    owners: dict[type[nn.Module], str] = {}
    tensors: list[TensorLayout] = []
    for number, entry in enumerate(entries):
        tensor = entry.tensor
        original = first[id(tensor)]
        block, shift = located[id(tensor)]
        kind = type(entry.module)
        owner = owners.get(kind)
        if owner is None:
            owner = owners[kind] = class_name(entry.module)
        tensors.append(
            TensorLayout(
                entry.name,
                entry.kind,
                owner,
                _DTYPE_NAMES[tensor.dtype],
                tuple(tensor.shape),
                tensor.stride(),
                block,
                shift,
                entry.persistent,
                "" if original == number else entries[original].name,
            )
        )
    blocks = tuple(Block(0, span.end - span.begin) for span in spans)
    layout = ModelLayout(LAYOUT_VERSION, class_name(model), 0, blocks, tuple(tensors))
    return Registry(entries, layout, spans)


def _walk(module: nn.Module, prefix: str, depth: int) -> Iterator[Registered]:
    if depth > _MAX_DEPTH:
        raise UnsupportedError("cyclic_modules", f"modules below {prefix[:80]!r} nest without end")
    for key, parameter in module._parameters.items():  # noqa: SLF001 - torch has no public form
        if parameter is not None:
            yield Registered(prefix + key, module, key, TensorKind.PARAMETER, True, parameter)  # noqa: FBT003
    transient = module._non_persistent_buffers_set  # noqa: SLF001 - the same
    for key, buffer in module._buffers.items():  # noqa: SLF001 - the same
        if buffer is not None:
            persistent = key not in transient
            yield Registered(prefix + key, module, key, TensorKind.BUFFER, persistent, buffer)
    for key, child in module._modules.items():  # noqa: SLF001 - the same
        if child is not None:
            yield from _walk(child, f"{prefix}{key}.", depth + 1)


def _blocks(entries: list[Registered]) -> tuple[tuple[Span, ...], dict[int, tuple[int, int]]]:
    """Spans in the order of their first name, and each tensor's block and shift by its id."""
    storages: dict[int, list[tuple[int, int, torch.Tensor]]] = {}
    for entry in entries:
        tensor = entry.tensor
        if tensor.dtype not in _DTYPE_NAMES:
            raise UnsupportedError("dtype", f"{entry.name} has dtype {tensor.dtype}, not supported")
        item = tensor.element_size()
        begin = int(tensor.storage_offset()) * item
        end = begin + extent(tensor.shape, tensor.stride()) * item
        storage = tensor.untyped_storage()._cdata  # noqa: SLF001 - identity, also on meta
        storages.setdefault(storage, []).append((begin, end, tensor))
    span_of: dict[int, Span] = {}
    for members in storages.values():
        for span, tensors in _overlapping(members):
            span_of |= dict.fromkeys(map(id, tensors), span)
    numbers: dict[int, int] = {}
    spans: list[Span] = []
    located: dict[int, tuple[int, int]] = {}
    for entry in entries:
        tensor = entry.tensor
        span = span_of[id(tensor)]
        number = numbers.get(id(span))
        if number is None:
            number = numbers[id(span)] = len(spans)
            spans.append(span)
        begin = int(tensor.storage_offset()) * tensor.element_size()
        located[id(tensor)] = (number, begin - span.begin)
    return tuple(spans), located


def _overlapping(
    members: list[tuple[int, int, torch.Tensor]],
) -> Iterator[tuple[Span, list[torch.Tensor]]]:
    """Runs of bytes of one storage that its tensors share; each with its tensors."""
    if len(members) > 1:
        members = sorted(members, key=lambda member: member[:2])
    run: list[torch.Tensor] = []
    start = stop = 0
    for begin, end, tensor in members:
        if run and (begin >= stop or begin == end):
            yield Span(run[0], start, stop), run
            run = []
        if not run:
            start, stop = begin, end
        run.append(tensor)
        stop = max(stop, end)
    if run:
        yield Span(run[0], start, stop), run
