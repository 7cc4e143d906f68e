"""Plans as data: what is refused, what each rule does to names and shapes, and no byte read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightlease.errors import FailureCode
from weightlease.parallelism import Coordinates, ExpertParallel, TensorParallel
from weightlease.producer.plan import CheckpointPlan, PlanError, parse_plan
from weightlease.producer.plan_rules import Output, outputs
from weightlease.producer.plan_tensors import Join, Leaf, Node, Take, runs


def document(*rules: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "plan_id": "test",
        "version": "1",
        "representation": {"name": "runtime-bf16", "dtype": "BF16"},
        "layout": "final",
        "restorer_schema": "r-v1",
        "rules": list(rules),
        **changes,
    }


def plan(*rules: dict[str, Any], **changes: Any) -> CheckpointPlan:
    return parse_plan(json.dumps(document(*rules, **changes)).encode())


def leaf(name: str, *shape: int, dtype: str = "F32") -> Leaf:
    return Leaf("model.safetensors", name, dtype, shape, 0)


LEAVES = [
    leaf("model.blocks.0.q.weight", 4, 8),
    leaf("model.blocks.0.k.weight", 4, 8),
    leaf("model.blocks.0.o.weight", 8, 4),
    leaf("model.norm.weight", 8),
    leaf("model.steps", 1, dtype="I64"),
]


def applied(*rules: dict[str, Any], coordinates: Coordinates | None = None) -> dict[str, Output]:
    found = outputs(plan(*rules), LEAVES, coordinates or Coordinates())
    return {output.name: output for output in found}


def tp(rank: int, size: int = 2) -> Coordinates:
    return Coordinates(tensor=TensorParallel(size=size, rank=rank))


# ---- rules ----


def test_a_plan_without_rules_keeps_every_tensor() -> None:
    assert sorted(applied()) == sorted(each.name for each in LEAVES)


def test_select_keeps_and_drop_removes() -> None:
    assert sorted(applied({"op": "select", "patterns": ["model.blocks.**"]})) == [
        "model.blocks.0.k.weight",
        "model.blocks.0.o.weight",
        "model.blocks.0.q.weight",
    ]
    assert "model.steps" not in applied({"op": "drop", "patterns": ["model.steps"]})


def test_a_star_is_one_part_of_a_name_and_two_are_many() -> None:
    assert "model.norm.weight" in applied({"op": "select", "patterns": ["model.*.weight"]})
    with pytest.raises(PlanError, match="matches no tensor"):
        applied({"op": "select", "patterns": ["model.*.q.weight.*"]})


def test_rename_carries_wildcards_over_in_order() -> None:
    renamed = applied({"op": "rename", "from": "model.blocks.*.*.weight", "to": "b.*.w.*"})
    assert {"b.0.w.q", "b.0.w.k", "b.0.w.o"} <= set(renamed)


def test_two_tensors_never_get_one_name() -> None:
    with pytest.raises(PlanError, match="two tensors would be named"):
        applied({"op": "rename", "from": "model.steps", "to": "model.norm.weight"})
    with pytest.raises(PlanError, match="two tensors would be named"):
        applied(
            {
                "op": "concatenate",
                "sources": ["model.blocks.0.q.weight", "model.blocks.0.k.weight"],
                "target": "model.norm.weight",
            }
        )


def test_concatenate_joins_its_sources_in_order_for_each_block() -> None:
    qk = {
        "op": "concatenate",
        "sources": ["model.blocks.*.q.weight", "model.blocks.*.k.weight"],
        "target": "model.blocks.*.qk.weight",
    }
    joined = applied(qk)
    assert joined["model.blocks.0.qk.weight"].node.shape == (8, 8)
    assert "model.blocks.0.q.weight" not in joined


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (["model.blocks.0.q.weight", "model.blocks.0.absent"], "needs"),
        (["model.blocks.0.q.weight", "model.norm.weight"], "cannot join"),
        (["model.steps", "model.norm.weight"], "cannot join"),
        (["model.steps", "model.steps"], "twice"),
    ],
)
def test_tensors_that_do_not_fit_are_not_joined(sources: list[str], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        applied({"op": "concatenate", "sources": sources, "target": "t"})


@pytest.mark.parametrize("rank", [0, 1])
def test_column_splits_rows_and_row_splits_columns(rank: int) -> None:
    column = {"op": "column", "patterns": ["model.blocks.*.q.weight"]}
    row = {"op": "row", "patterns": ["model.blocks.*.o.weight"]}
    found = applied(column, row, coordinates=tp(rank))
    assert found["model.blocks.0.q.weight"].node == Take(LEAVES[0], 0, ((2 * rank, 2 * rank + 2),))
    assert found["model.blocks.0.o.weight"].node == Take(LEAVES[2], 1, ((2 * rank, 2 * rank + 2),))
    assert found["model.norm.weight"].node is LEAVES[3], "the rest is replicated"


def test_a_component_that_is_not_split_is_the_same_for_every_rank() -> None:
    column = {"op": "column", "patterns": ["model.blocks.*.q.weight"]}
    whole = Coordinates(tensor=TensorParallel(size=2, rank=1, splits_tensors=False))
    assert applied(column, coordinates=whole)["model.blocks.0.q.weight"].node is LEAVES[0]


def test_elements_of_less_than_a_byte_are_refused() -> None:
    with pytest.raises(PlanError, match="cannot address"):
        outputs(plan(), [leaf("packed", 8, dtype="F4")], Coordinates())


def test_packed_splits_each_section_by_itself() -> None:
    packed = {"op": "packed", "patterns": ["model.blocks.*.o.weight"], "sections": [2, 1, 1]}
    found = applied(packed, coordinates=tp(1))["model.blocks.0.o.weight"].node
    assert found == Take(LEAVES[2], 0, ((2, 4), (5, 6), (7, 8)))


def test_expert_keeps_the_owned_experts() -> None:
    owned = Coordinates(expert=ExpertParallel(size=2, rank=1, experts=(1, 3)))
    rule = {"op": "expert", "patterns": ["model.blocks.*.q.weight"]}
    found = applied(rule, coordinates=owned)["model.blocks.0.q.weight"].node
    assert found == Take(LEAVES[0], 0, ((1, 2), (3, 4)))
    beyond = Coordinates(expert=ExpertParallel(size=2, rank=1, experts=(4,)))
    with pytest.raises(PlanError, match="lacks expert 4"):
        applied(rule, coordinates=beyond)


def test_cast_narrows_floats_but_what_it_preserves_and_integers() -> None:
    rule = {"op": "cast", "dtype": "BF16", "preserve_float32": ["model.norm.weight"]}
    found = {name: output.dtype for name, output in applied(rule).items()}
    assert found["model.blocks.0.q.weight"] == "BF16"
    assert found["model.norm.weight"] == "F32"
    assert found["model.steps"] == "I64"


@pytest.mark.parametrize(
    "rule",
    [
        {"op": "column", "patterns": ["model.norm.weight"]},
        {"op": "row", "patterns": ["model.norm.weight"]},
        {"op": "packed", "patterns": ["model.norm.weight"], "sections": [1, 2]},
    ],
)
def test_what_cannot_be_split_evenly_is_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        applied(rule, coordinates=tp(0, size=3))


def test_a_pattern_that_matches_nothing_is_a_mistake_unless_it_is_optional() -> None:
    rule = {"op": "drop", "patterns": ["absent"]}
    with pytest.raises(PlanError, match="matches no tensor") as caught:
        applied(rule)
    assert caught.value.failure.code is FailureCode.PRODUCER_FAILED
    assert len(applied(rule | {"optional": True})) == len(LEAVES)


def test_a_plan_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(PlanError, match="leaves no tensor"):
        applied({"op": "drop", "patterns": ["**"]})


# ---- the document ----


@pytest.mark.parametrize(
    "spoilt",
    [
        document(schema_version=2),
        document(plan_id=""),
        document(surprise=1),
        document({"op": "explode", "patterns": ["a"]}),
        document({"op": "drop", "patterns": []}),
        document({"op": "drop", "patterns": [""]}),
        document({"op": "drop", "patterns": ["**.a.**"]}),
        document({"op": "drop", "patterns": ["a*b"]}),
        document({"op": "drop", "patterns": ["***"]}),
        document({"op": "rename", "from": "a.*", "to": "b"}),
        document({"op": "concatenate", "sources": ["a"], "target": "b"}),
        document({"op": "concatenate", "sources": ["a", "b"], "target": "c", "dim": -1}),
        document({"op": "concatenate", "sources": ["a.*", "b"], "target": "c.*"}),
        document({"op": "cast", "dtype": "F8_E4M3"}),
        document({"op": "packed", "patterns": ["a"], "sections": []}),
        document({"op": "packed", "patterns": ["a"], "sections": [0]}),
        document(*[{"op": "drop", "patterns": ["a"]}] * 1001),
        {},
        [],
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(spoilt: object) -> None:
    with pytest.raises(PlanError):
        parse_plan(json.dumps(spoilt).encode())


@pytest.mark.parametrize("data", [b"", b"\xff", b"[" * 100_000, b" " * (1024 * 1024 + 1)])
def test_bytes_that_are_no_plan_are_refused(data: bytes) -> None:
    with pytest.raises(PlanError):
        parse_plan(data)


def test_another_plan_has_another_digest_and_white_space_makes_none() -> None:
    rule = {"op": "drop", "patterns": ["a"]}
    assert plan(rule).sha256 != plan().sha256
    assert parse_plan(json.dumps(document(rule), indent=2).encode()).sha256 == plan(rule).sha256
    assert plan(version="2").sha256 != plan().sha256


# ---- index arithmetic ----

SIZES = st.integers(0, 4)


@st.composite
def nodes(draw: st.DrawFn, depth: int = 2) -> Node:
    """A tree over a few leaves of three dimensions."""
    kind = draw(st.sampled_from(["leaf", "take", "join"])) if depth else "leaf"
    if kind == "leaf":
        shape = tuple(draw(SIZES) for _ in range(3))
        return Leaf("f", draw(st.sampled_from("abc")) + str(shape), "U8", shape, 0)
    node = draw(nodes(depth - 1))
    dim = draw(st.integers(0, 2))
    if kind == "take":
        size = node.shape[dim]
        cuts = sorted(draw(st.lists(st.integers(0, size), min_size=2, max_size=4)))
        return Take(node, dim, tuple(zip(cuts[::2], cuts[1::2], strict=False)))
    return Join((node, node), dim)


def values(node: Node) -> Any:
    """The same node by numpy, each element naming its leaf and its place there."""
    import numpy as np

    if isinstance(node, Leaf):
        size = int(np.prod(node.shape))
        made = np.array([(node.name, number) for number in range(size)], dtype=object)
        return made.reshape(*node.shape, 2)
    if isinstance(node, Take):
        whole = values(node.node)
        index = [place for begin, end in node.ranges for place in range(begin, end)]
        return np.take(whole, index, axis=node.dim)
    return np.concatenate([values(part) for part in node.nodes], axis=node.dim)


@given(nodes())
def test_runs_are_what_numpy_takes_and_joins(node: Node) -> None:
    expected = [tuple(pair) for pair in values(node).reshape(-1, 2)]
    found = [
        (run.leaf.name, run.first + number) for run in runs(node) for number in range(run.elements)
    ]
    assert found == expected
    assert values(node).shape[:-1] == node.shape
