"""Applying a plan's rules to what a checkpoint holds: pure, over names and shapes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from weightlease.parallelism import Coordinates
from weightlease.producer.plan import (
    FLOATS,
    Cast,
    CheckpointPlan,
    Column,
    Concatenate,
    Drop,
    Expert,
    Packed,
    PlanError,
    Rename,
    Row,
    Rule,
    Select,
    compiled,
    filled,
)
from weightlease.producer.plan_tensors import Leaf, Node, Take, joined
from weightlease.safetensors_format import DTYPES


@dataclass(frozen=True)
class Output:
    """One tensor of the artifact: what it is made of, and the dtype it is stored in."""

    name: str
    node: Node
    dtype: str


def outputs(
    plan: CheckpointPlan, leaves: Iterable[Leaf], coordinates: Coordinates
) -> tuple[Output, ...]:
    """What `plan` makes of `leaves`, sorted by name.

    Raises:
        PlanError: a rule that does not fit: nothing matches, a dimension cannot be split evenly,
            two tensors get one name, nothing is left, or elements are less than a byte.

    """
    state = _State(leaves, coordinates)
    for number, rule in enumerate(plan.rules):
        state.apply(number, rule)
    if not state.nodes:
        raise PlanError(f"plan {plan.plan_id!r} leaves no tensor")
    for name, node in state.nodes.items():
        if DTYPES[node.dtype][0] % 8:
            raise PlanError(f"tensor {name!r} has dtype {node.dtype}, which a plan cannot address")
    return tuple(
        Output(name, node, state.dtypes.get(name, node.dtype))
        for name, node in sorted(state.nodes.items())
    )


class _State:
    def __init__(self, leaves: Iterable[Leaf], coordinates: Coordinates) -> None:
        self.nodes: dict[str, Node] = {leaf.name: leaf for leaf in leaves}
        self.dtypes: dict[str, str] = {}
        self._coordinates = coordinates

    def apply(self, number: int, rule: Rule) -> None:
        match rule:
            case Select():
                kept = set(self._matching(number, rule.patterns, optional=rule.optional))
                self._keep(kept)
            case Drop():
                gone = set(self._matching(number, rule.patterns, optional=rule.optional))
                self._keep(self.nodes.keys() - gone)
            case Rename():
                self._rename(number, rule)
            case Concatenate():
                self._concatenate(number, rule)
            case Cast():
                self._cast(number, rule)
            case _:
                for name in self._matching(number, rule.patterns, optional=rule.optional):
                    self.nodes[name] = self._sliced(name, self.nodes[name], rule)

    def _keep(self, names: set[str]) -> None:
        self.nodes = {name: node for name, node in self.nodes.items() if name in names}
        self.dtypes = {name: dtype for name, dtype in self.dtypes.items() if name in names}

    def _matching(self, number: int, patterns: tuple[str, ...], *, optional: bool) -> list[str]:
        found: dict[str, None] = {}
        for pattern in patterns:
            expression = compiled(pattern)
            matched = [name for name in self.nodes if expression.fullmatch(name)]
            if not matched and not optional:
                raise PlanError(f"rule {number}: pattern {pattern!r} matches no tensor")
            found.update(dict.fromkeys(matched))
        return list(found)

    def _rename(self, number: int, rule: Rename) -> None:
        expression = compiled(rule.source)
        moved = dict(_renamed(self.nodes, expression, rule.target))
        if not moved and not rule.optional:
            raise PlanError(f"rule {number}: pattern {rule.source!r} matches no tensor")
        renamed: dict[str, Node] = {}
        for name, node in self.nodes.items():
            target = moved.get(name, name)
            if target in renamed:
                raise PlanError(f"rule {number}: two tensors would be named {target!r}")
            renamed[target] = node
        self.nodes = renamed
        self.dtypes = {moved.get(name, name): dtype for name, dtype in self.dtypes.items()}

    def _concatenate(self, number: int, rule: Concatenate) -> None:
        expression = compiled(rule.sources[0])
        matches = [match for name in self.nodes if (match := expression.fullmatch(name))]
        if not matches and not rule.optional:
            raise PlanError(f"rule {number}: pattern {rule.sources[0]!r} matches no tensor")
        for match in matches:
            wildcards = tuple(match.groups())
            names = [filled(source, wildcards) for source in rule.sources]
            if len(set(names)) != len(names):
                raise PlanError(f"rule {number}: {rule.target!r} would hold a tensor twice")
            missing = [name for name in names if name not in self.nodes]
            if missing:
                raise PlanError(f"rule {number}: {rule.target!r} needs {missing[0]!r}, not there")
            target = filled(rule.target, wildcards)
            node = joined(target, tuple(self.nodes[name] for name in names), rule.dim)
            for name in names:
                del self.nodes[name]
                self.dtypes.pop(name, None)
            if target in self.nodes:
                raise PlanError(f"rule {number}: two tensors would be named {target!r}")
            self.nodes[target] = node

    def _cast(self, number: int, rule: Cast) -> None:
        wide = set(self._matching(number, rule.preserve_float32, optional=rule.optional))
        for name, node in self.nodes.items():
            if node.dtype in FLOATS:
                self.dtypes[name] = "F32" if name in wide else rule.dtype

    def _sliced(self, name: str, node: Node, rule: Column | Row | Packed | Expert) -> Node:
        if isinstance(rule, Expert):
            return self._experts(name, node)
        tensor = self._coordinates.tensor
        # what every rank holds whole is no rank's own in the key, so it must not be in the bytes
        size, rank = (tensor.size, tensor.rank) if tensor.splits_tensors else (1, 0)
        dim = 1 if isinstance(rule, Row) else 0
        if len(node.shape) <= dim:
            raise PlanError(f"tensor {name!r} of shape {list(node.shape)} has no dimension {dim}")
        whole = node.shape[dim]
        sections = rule.sections if isinstance(rule, Packed) else (1,)
        if whole % sum(sections):
            raise PlanError(f"tensor {name!r}: {whole} rows are not sections {list(sections)}")
        unit = whole // sum(sections)
        ranges, cursor = [], 0
        for section in sections:
            length = section * unit
            if length % size:
                raise PlanError(
                    f"tensor {name!r}: {length} of dimension {dim} cannot be split {size} ways"
                )
            share = length // size
            ranges.append((cursor + rank * share, cursor + (rank + 1) * share))
            cursor += length
        return node if size == 1 else Take(node, dim, tuple(ranges))

    def _experts(self, name: str, node: Node) -> Node:
        owned = self._coordinates.expert.experts
        if not owned:
            return node
        if not node.shape or owned[-1] >= node.shape[0]:
            raise PlanError(f"tensor {name!r} of shape {list(node.shape)} lacks expert {owned[-1]}")
        return Take(node, 0, tuple((expert, expert + 1) for expert in owned))


def _renamed(
    names: Iterable[str], expression: re.Pattern[str], target: str
) -> Iterator[tuple[str, str]]:
    for name in names:
        match = expression.fullmatch(name)
        if match:
            yield name, filled(target, tuple(match.groups()))
