"""The header reader against the reference implementation, on valid files and on damaged ones."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from weightlease.errors import SafetensorsFormatError
from weightlease.safetensors_format import DTYPES, Header, HeaderParser, layout_header
from weightlease.store.protocol import TensorSpec

# the library ships no types for it
deserialize: Any = safetensors.deserialize

names = st.text(min_size=1, max_size=12).filter(
    lambda name: name != "__metadata__" and name.isprintable()
)

shapes = st.lists(st.integers(0, 4), max_size=3)


@st.composite
def specs(draw: st.DrawFn) -> tuple[TensorSpec, ...]:
    found = []
    for name in draw(st.lists(names, max_size=6, unique=True)):
        dtype = draw(st.sampled_from(sorted(DTYPES)))
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        # four elements of any dtype are whole bytes
        found.append(TensorSpec(name, dtype, (*shape, 4)))
    return tuple(found)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    header, layout = layout_header(draw(specs()))
    return header + bytes(layout.tensors[-1].end if layout.tensors else 0)


def ours(file: bytes) -> Header | None:
    """Our reading, or None where we refuse; anything but a typed refusal fails the test."""
    try:
        parser = HeaderParser(len(file))
        parser.feed(file)
    except SafetensorsFormatError:
        return None
    return parser.header


def theirs(file: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {
        name: (info["dtype"], tuple(info["shape"]), bytes(info["data"]))
        for name, info in deserialize(file)
    }


def slices(file: bytes, header: Header) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    data = file[header.data_start :]
    return {
        each.name: (each.dtype, each.shape, data[each.start : each.end]) for each in header.tensors
    }


@given(files())
def test_a_valid_file_reads_as_the_reference_reads_it(file: bytes) -> None:
    header = ours(file)
    assert header is not None
    assert slices(file, header) == theirs(file)


@given(st.dictionaries(names, st.tuples(st.sampled_from(["<f4", "<f2", "<i8", "u1"]), shapes)))
def test_what_the_reference_writes_is_read(tensors: dict[str, tuple[str, list[int]]]) -> None:
    arrays = {name: np.ones(shape, dtype) for name, (dtype, shape) in tensors.items()}
    file = safetensors.numpy.save(arrays, {"format": "np"})
    header = ours(file)
    assert header is not None
    assert slices(file, header) == theirs(file)


@given(files(), st.data())
def test_a_damaged_file_is_refused_typed_or_read_as_the_reference_reads_it(
    file: bytes, data: st.DataObject
) -> None:
    damaged = bytearray(file)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(len(damaged) - 1, 0)))
        what = data.draw(st.sampled_from(["flip", "drop", "insert", "cut"]))
        if what == "flip" and damaged:
            damaged[at] = data.draw(st.integers(0, 255))
        elif what == "drop":
            del damaged[at : at + 1]
        elif what == "insert":
            damaged[at:at] = data.draw(
                st.sampled_from([b"0", b"-", b'"', b",", b"\\", b"{", b"\0"])
            )
        else:
            del damaged[at:]
    header = ours(bytes(damaged))
    if header is not None:
        assert slices(bytes(damaged), header) == theirs(bytes(damaged))


numbers = st.one_of(
    st.integers(-2, 2**70), st.booleans(), st.floats(), st.none(), st.text(max_size=2)
)
entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.one_of(st.sampled_from([*DTYPES, "X"]), numbers),
        "shape": st.one_of(st.lists(numbers, max_size=3), numbers),
        "data_offsets": st.one_of(st.lists(numbers, max_size=3), numbers),
        "extra": numbers,
    },
)


@given(st.dictionaries(st.text(max_size=3), st.one_of(entries, numbers)), st.binary(max_size=16))
def test_any_json_at_all_is_refused_typed_or_read_as_the_reference_reads_it(
    document: dict[str, Any], data: bytes
) -> None:
    text = json.dumps(document).encode()
    file = struct.pack("<Q", len(text)) + text + data
    header = ours(file)
    if header is not None:
        assert slices(file, header) == theirs(file)
