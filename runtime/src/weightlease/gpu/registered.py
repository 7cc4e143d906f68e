"""What a module registers: every parameter and buffer under every name, and its layout.

Works alike on real and on meta tensors, so both sides compute the same thing from their own module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
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
_PLAIN = (torch.Tensor, nn.Parameter)
_SUBCLASSES = {
    "DTensor": "dtensor",
    "UninitializedBuffer": "lazy",
    "UninitializedParameter": "lazy",
}


class Registered(msgspec.Struct, frozen=True):
    """One name: whose class registers it, in which table under what key, and the tensor."""

    name: str
    owner: type[nn.Module]
    table: dict[str, Any]
    key: str
    kind: TensorKind
    persistent: bool
    tensor: torch.Tensor


class Span(msgspec.Struct, frozen=True):
    """A block in the source: bytes `begin`..`end` of the storage of `tensor`."""

    tensor: torch.Tensor
    begin: int
    end: int


class Registry(msgspec.Struct, frozen=True):
    """A module's names sorted, its layout without a place in an arena, and its blocks' sources.

    `modules` are all modules with their paths, a shared one under each of its own.
    """

    modules: list[tuple[str, nn.Module]]
    entries: list[Registered]
    layout: ModelLayout
    spans: list[Span]


class _Facts(msgspec.Struct, frozen=True):
    """One tensor; `number` of its first entry, bytes `begin`..`end` in its storage."""

    number: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    begin: int
    end: int


def class_name(kind: type) -> str:
    """`module.qualified name` of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def registry(model: nn.Module) -> Registry:
    """Everything `model` registers, with its complete layout.

    Raises:
        UnsupportedError: a tensor is not plain and strided, or of a dtype that has no name here.

    """
    # Runs for every tensor of every attach: plain loops, and objects that are quick to make.
    modules, entries = _walk(model)
    entries.sort(key=attrgetter("name"))
    require_plain_tensors(entries)
    facts: dict[int, _Facts] = {}
    for number, entry in enumerate(entries):
        if id(entry.tensor) not in facts:
            facts[id(entry.tensor)] = _facts(number, entry)
    spans, located = _blocks(entries, facts)
    owners = {kind: class_name(kind) for kind in {entry.owner for entry in entries}}
    tensors: list[TensorLayout] = []
    for number, entry in enumerate(entries):
        identity = id(entry.tensor)
        fact, block = facts[identity], located[identity]
        tensors.append(
            TensorLayout(
                entry.name,
                entry.kind,
                owners[entry.owner],
                fact.dtype,
                fact.shape,
                fact.stride,
                block,
                fact.begin - spans[block].begin,
                entry.persistent,
                "" if fact.number == number else entries[fact.number].name,
            )
        )
    blocks = tuple([Block(0, span.end - span.begin) for span in spans])
    layout = ModelLayout(LAYOUT_VERSION, class_name(type(model)), 0, blocks, tuple(tensors))
    return Registry(modules, entries, layout, spans)


def require_plain_tensors(entries: Iterable[Registered]) -> None:
    """Every registered tensor is native and strided.

    Raises:
        UnsupportedError: the first that is not.

    """
    for entry in entries:
        tensor = entry.tensor
        kind = type(tensor)
        if kind not in _PLAIN:
            feature = _SUBCLASSES.get(kind.__name__, "tensor_subclass")
            raise UnsupportedError(feature, f"{entry.name} is a {kind.__name__}, no plain tensor")
        if tensor.is_quantized:
            raise UnsupportedError("quantization", f"{entry.name} is a quantised tensor")
        if tensor.layout != torch.strided or tensor.is_nested:
            raise UnsupportedError("not_strided", f"{entry.name} is not a native strided tensor")
        if tensor.is_conj() or tensor.is_neg():
            raise UnsupportedError("lazy_view", f"{entry.name} is a lazy conjugate or negation")


def _walk(model: nn.Module) -> tuple[list[tuple[str, nn.Module]], list[Registered]]:
    modules: list[tuple[str, nn.Module]] = []
    found: list[Registered] = []
    waiting: list[tuple[nn.Module, str, int]] = [(model, "", 0)]
    parameter_kind, buffer_kind = TensorKind.PARAMETER, TensorKind.BUFFER
    while waiting:
        module, prefix, depth = waiting.pop()
        if depth > _MAX_DEPTH:
            raise UnsupportedError("cyclic_modules", f"{prefix[:80]!r}: modules nest without end")
        modules.append((prefix[:-1], module))
        # torch has no public form that is complete, names of ties included
        owner, own = type(module), module.__dict__
        table = own["_parameters"]
        for key, tensor in table.items():
            if tensor is not None:
                name = prefix + key
                found.append(Registered(name, owner, table, key, parameter_kind, True, tensor))  # noqa: FBT003
        table = own["_buffers"]
        for key, tensor in table.items():
            if tensor is not None:
                name, persistent = prefix + key, key not in own["_non_persistent_buffers_set"]
                found.append(Registered(name, owner, table, key, buffer_kind, persistent, tensor))
        for key, child in own["_modules"].items():
            if child is not None:
                waiting.append((child, f"{prefix}{key}.", depth + 1))
    return modules, found


def _facts(number: int, entry: Registered) -> _Facts:
    tensor = entry.tensor
    dtype = _DTYPE_NAMES.get(tensor.dtype)
    if dtype is None:
        raise UnsupportedError("dtype", f"{entry.name} has dtype {tensor.dtype}, not supported")
    shape, stride = tuple(tensor.shape), tensor.stride()
    item = ITEM_SIZE[dtype]
    length = tensor.numel() if tensor.is_contiguous() else extent(shape, stride)
    begin = int(tensor.storage_offset()) * item
    return _Facts(number, dtype, shape, stride, begin, begin + length * item)


def _blocks(
    entries: Sequence[Registered], facts: Mapping[int, _Facts]
) -> tuple[list[Span], dict[int, int]]:
    """Spans in the order of their first name, and each tensor's block by its id."""
    storages: dict[int, list[tuple[int, int, torch.Tensor]]] = {}
    for fact in facts.values():
        tensor = entries[fact.number].tensor
        storage = tensor.untyped_storage()._cdata  # noqa: SLF001 - identity, also on meta
        storages.setdefault(storage, []).append((fact.begin, fact.end, tensor))
    span_of: dict[int, Span] = {}
    for members in storages.values():
        if len(members) == 1:
            ((begin, end, tensor),) = members
            span_of[id(tensor)] = Span(tensor, begin, end)
            continue
        for span, tensors in _overlapping(members):
            span_of |= dict.fromkeys(map(id, tensors), span)
    numbers: dict[int, int] = {}
    spans: list[Span] = []
    located: dict[int, int] = {}
    for identity in facts:
        span = span_of[identity]
        number = numbers.setdefault(id(span), len(spans))
        if number == len(spans):
            spans.append(span)
        located[identity] = number
    return spans, located


def _overlapping(
    members: list[tuple[int, int, torch.Tensor]],
) -> Iterator[tuple[Span, list[torch.Tensor]]]:
    """Runs of bytes of one storage that its tensors share; each with its tensors."""
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
