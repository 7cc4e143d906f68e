"""Tensors of a plan as arithmetic on indices: no byte is read here.

A `Leaf` lies in a source file; `Take` keeps ranges of one dimension, `Join` puts tensors one after
the other along one. `runs` turns any of them into the stretches of leaves that its elements are, in
row-major order, so an output is streamed without ever being whole in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from weightlease.producer.plan import PlanError


@dataclass(frozen=True)
class Leaf:
    """A tensor of a source file; `offset` is the byte at which it begins there."""

    file: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Take:
    """Half-open ranges of dimension `dim`, in this order."""

    node: Node
    dim: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape with the ranges' length in `dim`."""
        kept = sum(end - begin for begin, end in self.ranges)
        return _with(self.node.shape, self.dim, kept)

    @property
    def dtype(self) -> str:
        """The dtype of what is taken from."""
        return self.node.dtype


@dataclass(frozen=True)
class Join:
    """Tensors one after the other along `dim`."""

    nodes: tuple[Node, ...]
    dim: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape with the parts' lengths added up in `dim`."""
        total = sum(node.shape[self.dim] for node in self.nodes)
        return _with(self.nodes[0].shape, self.dim, total)

    @property
    def dtype(self) -> str:
        """The dtype of the parts, which is one."""
        return self.nodes[0].dtype


Node: TypeAlias = Leaf | Take | Join


class Run(NamedTuple):
    """`elements` elements of `leaf` from element `first` on."""

    leaf: Leaf
    first: int
    elements: int


def joined(name: str, nodes: tuple[Node, ...], dim: int) -> Join:
    """Join `nodes`, which must agree in all else.

    Raises:
        PlanError: they differ in dtype, rank or another dimension.

    """
    first = nodes[0]
    for node in nodes:
        same = (
            node.dtype == first.dtype
            and len(node.shape) == len(first.shape) > dim
            and _with(node.shape, dim, 0) == _with(first.shape, dim, 0)
        )
        if not same:
            raise PlanError(
                f"tensor {name!r} cannot join {first.dtype}{list(first.shape)} and "
                f"{node.dtype}{list(node.shape)} along dimension {dim}"
            )
    return Join(nodes, dim)


def runs(node: Node) -> Iterator[Run]:
    """The stretches of leaves that `node` is made of, adjacent ones joined."""
    pending: Run | None = None
    for run in _stretches(node, 0, math.prod(node.shape)):
        if (
            pending is not None
            and run.leaf is pending.leaf
            and run.first == pending.first + pending.elements
        ):
            pending = Run(run.leaf, pending.first, pending.elements + run.elements)
            continue
        if pending is not None:
            yield pending
        pending = run
    if pending is not None:
        yield pending


def _stretches(node: Node, start: int, stop: int) -> Iterator[Run]:
    """Runs of the flattened elements [start, stop) of `node`."""
    if start >= stop:
        return
    if isinstance(node, Leaf):
        yield Run(node, start, stop - start)
        return
    inner = math.prod(node.shape[node.dim + 1 :])
    block = node.shape[node.dim] * inner
    for outer in range(start // block, (stop - 1) // block + 1):
        cursor = outer * block
        for part, begin, end in _parts(node, inner, outer):
            length = end - begin
            low, high = max(start, cursor), min(stop, cursor + length)
            yield from _stretches(part, begin + low - cursor, begin + high - cursor)
            cursor += length


def _parts(node: Take | Join, inner: int, outer: int) -> Iterator[tuple[Node, int, int]]:
    """What block `outer` of `node` is made of: parts with flattened element ranges in them."""
    if isinstance(node, Take):
        size = node.node.shape[node.dim]
        for begin, end in node.ranges:
            first = outer * size
            yield node.node, (first + begin) * inner, (first + end) * inner
        return
    for part in node.nodes:
        length = part.shape[node.dim] * inner
        yield part, outer * length, (outer + 1) * length


def _with(shape: tuple[int, ...], dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])
