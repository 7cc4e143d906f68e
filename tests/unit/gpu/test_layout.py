"""The layout table: complete, comparable, and checked when it comes from a peer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from donors import Small, small
from weightlease.gpu.errors import LayoutError
from weightlease.gpu.layout import (
    ALIGNMENT,
    ModelLayout,
    decode_layout,
    differences,
    encode_layout,
    place_blocks,
    used_bytes,
)
from weightlease.gpu.registered import registry


def placed(model: nn.Module) -> ModelLayout:
    layout = registry(model).layout
    blocks = place_blocks([block.nbytes for block in layout.blocks])
    return msgspec.structs.replace(layout, blocks=blocks, nbytes=used_bytes(blocks))


def on_meta() -> Small:
    with torch.device("meta"):
        return Small()


def test_every_parameter_and_buffer_is_listed_under_every_name() -> None:
    names = [tensor.name for tensor in registry(small()).layout.tensors]
    assert names == ["embed.weight", "head.weight", "inner.bias", "inner.weight", "scale", "steps"]


def test_a_tied_parameter_has_one_block_and_names_its_first_name() -> None:
    tensors = {tensor.name: tensor for tensor in registry(small()).layout.tensors}
    assert tensors["head.weight"].tied_to == "embed.weight"
    assert tensors["head.weight"].block == tensors["embed.weight"].block
    assert len(registry(small()).layout.blocks) == 5


def test_a_buffer_says_whether_it_is_persistent() -> None:
    persistent = {t.name: t.persistent for t in registry(small()).layout.tensors}
    assert persistent["steps"]
    assert not persistent["scale"]


def test_a_loaded_model_and_the_same_on_meta_have_one_layout() -> None:
    assert differences(registry(on_meta()).layout, placed(small())) == []


def test_disjoint_slices_of_one_storage_count_as_tensors_of_their_own() -> None:
    model = small()
    flat = torch.zeros(100)
    model.inner.bias.data = flat[7:12]
    model.inner.weight.data = flat[20:55].view(5, 7)
    assert differences(registry(on_meta()).layout, placed(model)) == []


def test_overlapping_tensors_share_a_block_at_their_shifts() -> None:
    model = nn.Module()
    whole = torch.arange(10.0)
    model.register_buffer("whole", whole)
    model.register_buffer("part", whole[4:8])
    layout = registry(model).layout
    found = {tensor.name: (tensor.block, tensor.shift) for tensor in layout.tensors}
    assert found == {"part": (0, 16), "whole": (0, 0)}
    assert [block.nbytes for block in layout.blocks] == [40]


class Other(Small):
    pass


def wider(model: Small) -> None:
    model.inner.weight.data = torch.zeros(5, 8)


def half(model: Small) -> None:
    model.inner.half()


def transposed(model: Small) -> None:
    model.inner.weight.data = torch.zeros(7, 5).t()


def untied(model: Small) -> None:
    model.head.weight = nn.Parameter(model.embed.weight.detach().clone())


def aliased(model: Small) -> None:
    model.head.weight = nn.Parameter(model.embed.weight.detach())


def persistent(model: Small) -> None:
    model._non_persistent_buffers_set.clear()


def extra(model: Small) -> None:
    model.register_buffer("more", torch.zeros(1))


def missing(model: Small) -> None:
    del model.steps


def buffer_for_parameter(model: Small) -> None:
    bias = model.inner.bias.detach()
    del model.inner.bias
    model.inner.register_buffer("bias", bias)


def other_owner(model: Small) -> None:
    class Linear(nn.Linear):
        pass

    model.inner.__class__ = Linear


def other_class(model: Small) -> None:
    model.__class__ = Other


def shifted(model: Small) -> None:
    flat = torch.zeros(40)
    model.inner.bias.data = flat[1:6]
    model.inner.weight.data = flat[:35].view(5, 7)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (wider, "inner.weight: shape (5, 7) here and (5, 8) there"),
        (half, "inner.bias: dtype float32 here and float16 there"),
        (transposed, "inner.weight: stride (7, 1) here and (1, 5) there"),
        (untied, "head.weight: tied_to embed.weight here and  there"),
        (aliased, "head.weight: tied_to embed.weight here and  there"),
        (persistent, "scale: persistent False here and True there"),
        (extra, "more is only there"),
        (missing, "steps is only here"),
        (buffer_for_parameter, "inner.bias: kind parameter here and buffer there"),
        (other_owner, "inner.weight: owner torch.nn.modules.linear.Linear here"),
        (other_class, "class donors.Small here"),
        (shifted, "inner.bias: shift 0 here and 4 there"),
    ],
)
def test_every_kind_of_difference_is_found_and_named(change: Any, says: str) -> None:
    model = small()
    change(model)
    found = differences(registry(on_meta()).layout, placed(model))
    assert any(line.startswith(says) for line in found), found


def test_a_layout_reads_back_as_written() -> None:
    layout = placed(small())
    assert decode_layout(encode_layout(layout)) == layout


@given(st.lists(st.integers(min_value=0, max_value=10_000)))
def test_blocks_are_aligned_and_apart(sizes: list[int]) -> None:
    end = 0
    for block, size in zip(place_blocks(sizes), sizes, strict=True):
        assert block.offset % ALIGNMENT == 0
        assert block.offset >= end
        end = block.offset + size


def tampered(path: tuple[Any, ...], value: Any) -> bytes:
    tree = msgspec.json.decode(encode_layout(placed(small())))
    node = tree
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    return msgspec.json.encode(tree)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("version",), 2, "version"),
        (("nbytes",), 0, "out of range"),
        (("nbytes",), 2**60, "out of range"),
        (("blocks", 1, "offset"), 8, "misaligned"),
        (("blocks", 1, "offset"), 0, "out of order"),
        (("blocks", 4, "offset"), 1 << 40, "behind"),
        (("tensors", 0, "shape"), [13, 8], "ends behind its block"),
        (("tensors", 0, "shape"), [2**40, 2**40], "ends behind its block"),
        (("tensors", 0, "shape"), [-1, 7], "out of range"),
        (("tensors", 0, "stride"), [7], "strides"),
        (("tensors", 0, "stride"), [-7, 1], "out of range"),
        (("tensors", 0, "shift"), 2, "out of range"),
        (("tensors", 0, "shift"), -4, "out of range"),
        (("tensors", 0, "block"), 9, "which is none"),
        (("tensors", 0, "block"), -1, "which is none"),
        (("tensors", 0, "dtype"), "object", "unknown dtype"),
        (("tensors", 0, "name"), "zzz", "out of order"),
        (("tensors", 0, "name"), "", "empty"),
        (("tensors", 1, "tied_to"), "steps", "not its like"),
        (("tensors", 1, "tied_to"), "inner.bias", "not its like"),
        (("tensors", 2, "persistent"), False, "not persistent"),
        (("tensors", 0, "kind"), "pickle", "malformed"),
        (("tensors", 0, "more"), 1, "malformed"),
    ],
)
def test_a_peers_layout_that_lies_is_refused(path: tuple[Any, ...], value: Any, says: str) -> None:
    with pytest.raises(LayoutError, match=says):
        decode_layout(tampered(path, value))


@given(st.binary(max_size=200))
def test_bytes_that_are_no_layout_are_refused(data: bytes) -> None:
    with pytest.raises(LayoutError):
        decode_layout(data)
