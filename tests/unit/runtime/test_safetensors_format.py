"""The header reader: legal oddities pass, every lie has its own reason."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from weightlease.errors import SafetensorsFormatError
from weightlease.safetensors_format import (
    DTYPES,
    MAX_HEADER_BYTES,
    Header,
    HeaderParser,
    StoredForm,
    TensorSlice,
    layout_header,
    parse_header,
    stored_form,
)
from weightlease.store.protocol import TensorSpec


def a_file(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def parse(file: bytes) -> Header:
    parser = HeaderParser(len(file))
    parser.feed(file)
    assert parser.header is not None
    return parser.header


def reason(file: bytes, size: int | None = None) -> str:
    with pytest.raises(SafetensorsFormatError) as caught:
        HeaderParser(len(file) if size is None else size).feed(file)
    return caught.value.reason


ONE = b'"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
TWICE = b"{" + ONE + b"," + ONE + b"}"


# ---- what is legal ----


def test_tensors_come_in_the_order_of_their_bytes_whatever_the_keys_order() -> None:
    header = parse(a_file({"b": entry("U8", [1], 3, 4), "a": entry("U8", [3], 0, 3)}, b"abcd"))
    assert [tensor.name for tensor in header.tensors] == ["a", "b"]


def test_empty_tensors_share_a_start_with_others() -> None:
    empties = {"z": entry("F32", [0], 0, 0), "y": entry("U8", [0, 9], 1, 1)}
    header = parse(a_file({"a": entry("U8", [1], 0, 1), **empties}, b"x"))
    assert [tensor.name for tensor in header.tensors] == ["z", "a", "y"]


def test_a_file_of_empty_tensors_has_no_data() -> None:
    assert parse(a_file({"a": entry("F32", [0], 0, 0)})).tensors[0].end == 0


def test_a_scalar_has_one_element() -> None:
    assert parse(a_file({"s": entry("F32", [], 0, 4)}, b"abcd")).tensors[0].shape == ()


def test_misaligned_data_is_legal() -> None:
    file = a_file({"a": entry("U8", [1], 0, 1), "b": entry("F32", [2], 1, 9)}, b"x" * 9)
    assert parse(file).tensors[1].start == 1


def test_metadata_is_text() -> None:
    assert parse(a_file({"__metadata__": {"format": "pt"}})).metadata == {"format": "pt"}


def test_a_padded_header_is_legal() -> None:
    assert parse(a_file(b"{}      ")).tensors == ()


def test_names_with_escapes_and_minus_zero_in_them_are_legal() -> None:
    names = {'quo"te': entry("U8", [1], 0, 1), "a,-0": entry("U8", [1], 1, 2)}
    assert [tensor.name for tensor in parse(a_file(names, b"ab")).tensors] == list(names)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_dtype_is_sized_in_bits(dtype: str) -> None:
    size = DTYPES[dtype][0]
    assert parse(a_file({"t": entry(dtype, [8], 0, size)}, bytes(size))).tensors[0].end == size


@pytest.mark.parametrize(
    ("dtype", "shape", "size", "form"),
    [
        ("BF16", (2, 3), 12, StoredForm("torch.bfloat16", (2, 3))),
        ("F8_E8M0", (3,), 3, StoredForm("torch.float8_e8m0fnu", (3,))),
        ("F4", (2, 8), 8, StoredForm("torch.float4_e2m1fn_x2", (2, 4))),
        ("F4", (8, 1), 4, StoredForm("torch.uint8", (4,))),
        ("F4", (0,), 0, StoredForm("torch.float4_e2m1fn_x2", (0,))),
        ("F6_E2M3", (4,), 3, StoredForm("torch.uint8", (3,))),
    ],
)
def test_a_manifest_describes_what_torch_stores(
    dtype: str, shape: tuple[int, ...], size: int, form: StoredForm
) -> None:
    assert stored_form(TensorSlice("t", dtype, shape, 0, size)) == form


# ---- what is a lie ----


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 7\n", "lfs_pointer"),
        (b"<!DOCTYPE html>\n<html><body>502</body></html>", "html"),
        (b"\n <html>", "html"),
        (b"", "empty"),
        (b"1234567", "too_short"),
        (struct.pack("<Q", 2**63 - 1) + b" " * 32, "header_too_long"),
        (struct.pack("<Q", 2**64 - 1) + b" " * 32, "header_too_long"),
        (struct.pack("<Q", 40) + b" " * 32, "truncated"),
        (struct.pack("<Q", 33) + b" " * 32, "truncated"),
        (struct.pack("<Q", 0) + b" " * 32, "malformed"),
        (a_file(b"\xef\xbb\xbf{}"), "malformed"),
        (a_file(b" {}"), "malformed"),
        (a_file(b"[]"), "malformed"),
        (a_file(b"{" + b'"a":[' * 100_000), "malformed"),
        (a_file(b'{"\\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'), "malformed"),
        (a_file({"": entry("U8", [0], 0, 0)}), "malformed"),
        (a_file({"a": {**entry("U8", [0], 0, 0), "x": 1}}), "malformed"),
        (a_file({"a": {"dtype": "U8", "shape": [0]}}), "malformed"),
        (a_file({"a": {"dtype": "U8", "shape": [0], "data_offsets": [0]}}), "malformed"),
        (a_file({"a": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0, 0]}}), "malformed"),
        (a_file({"__metadata__": {"a": 1}}), "malformed"),
        (a_file({"__metadata__": "x"}), "malformed"),
        (a_file({"a": entry("Q4", [0], 0, 0)}), "unknown_dtype"),
        (a_file({"a": entry("U8", [-1], 0, 1)}, b"a"), "negative"),
        (a_file(b'{"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}'), "negative"),
        (a_file({"a": entry("U8", [2**32, 2**32], 0, 1)}, b"a"), "overflow"),
        (a_file({"a": entry("F32", [1000, 1000], 0, 4)}, b"abcd"), "size_mismatch"),
        (a_file({"a": entry("U8", [1], 0, 0)}), "size_mismatch"),
        (a_file({"a": entry("F4", [3], 0, 2)}, b"ab"), "part_of_byte"),
        (a_file({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 0, 2)}, b"ab"), "overlap"),
        (a_file({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, b"abc"), "overlap"),
        (a_file({"a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 2, 3)}, b"abc"), "hole"),
        (a_file({"a": entry("U8", [1], 1, 2)}, b"ab"), "hole"),
        (a_file({"a": entry("U8", [1], 0, 1)}, b"abcdef"), "trailing"),
        (a_file({"a": entry("U8", [2], 0, 2)}, b"a"), "truncated"),
    ],
)  # fmt: skip
def test_a_lie_has_its_own_reason(file: bytes, expected: str) -> None:
    assert reason(file) == expected


@pytest.mark.parametrize("number", ["NaN", "-1", "1e3", "1.0", "true", '"1"', "null"])
@pytest.mark.parametrize("place", ["shape", "data_offsets"])
def test_only_plain_natural_numbers_count(number: str, place: str) -> None:
    fields = {"shape": "[1]", "data_offsets": "[0,1]"} | {place: f"[{number}]"}
    if place == "data_offsets":
        fields[place] = f"[0,{number}]"
    shape, offsets = fields["shape"], fields["data_offsets"]
    text = f'{{"a":{{"dtype":"U8","shape":{shape},"data_offsets":{offsets}}}}}'
    with pytest.raises(SafetensorsFormatError):
        parse(a_file(text.encode(), b"x"))


@pytest.mark.parametrize(
    "text",
    [
        TWICE,
        b'{"w":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"__metadata__":{"a":"b","a":"b"}}',
        b'{"__metadata__":{},"__metadata__":{},"w":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}',
        b'{"w":{"dtype":"U8","d\\u0074ype":"U8","shape":[1],"data_offsets":[0,1]}}',
    ],
)
def test_a_key_that_occurs_twice_is_refused(text: bytes) -> None:
    assert reason(a_file(text, b"x")) == "duplicate_key"


def test_a_length_bomb_is_refused_before_anything_is_read_for_it() -> None:
    parser = HeaderParser(10**12)
    prefix = struct.pack("<Q", MAX_HEADER_BYTES + 1)
    assert parser.feed(prefix) == len(prefix)
    with pytest.raises(SafetensorsFormatError, match="header length 100000001"):
        parser.feed(b" " * 64)


# ---- streaming ----


def test_a_header_may_arrive_byte_by_byte_and_takes_nothing_of_the_data() -> None:
    file = a_file({"a": entry("U8", [3], 0, 3)}, b"abc")
    parser = HeaderParser(len(file))
    taken = sum(parser.feed(file[index : index + 1]) for index in range(len(file)))
    assert parser.header == parse(file)
    assert taken == len(file) - 3 == parser.header.data_start


# ---- writing ----


def test_a_written_header_is_padded_and_reads_back_in_declared_order() -> None:
    specs = (
        TensorSpec("z", "F32", (2,)),
        TensorSpec("ä", "BF16", (3,)),
        TensorSpec("e", "U8", (0,)),
    )
    data, header = layout_header(specs)
    assert len(data) % 8 == 0
    assert parse_header(data[8:], len(data) + 14) == header
    assert {tensor.name: tensor.start for tensor in header.tensors} == {"z": 0, "ä": 8, "e": 14}
    assert header.metadata == {"format": "pt", "host_weight_runtime": "1"}


@pytest.mark.parametrize(
    "specs",
    [
        (TensorSpec("a", "F32", (1,)), TensorSpec("a", "F32", (1,))),
        (TensorSpec("__metadata__", "F32", (1,)),),
        (TensorSpec("a", "F99", (1,)),),
        (TensorSpec("a", "F32", (-1,)),),
    ],
)
def test_what_no_file_can_hold_is_refused(specs: tuple[TensorSpec, ...]) -> None:
    with pytest.raises(SafetensorsFormatError):
        layout_header(specs)
