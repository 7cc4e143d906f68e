"""The safetensors container, read without trusting any of it.

    u64 little endian   length n of the header, at most 100,000,000
    n bytes             JSON object, first byte "{", padded with spaces
        "<tensor name>": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}
        "__metadata__":  {"<text>": "<text>"}                                    optional
    data                tensors without a hole, an overlap or a tail; offsets count from here

Nothing is allocated for a length that has not passed its bounds, and sizes are compared in bits
and in Python's integers, which do not wrap. Source: the format's description and its 0.8 reader,
plus one rule that the reader lacks: no key occurs twice, since two parsers would then disagree.

The header counts logical elements. Where torch stores something else, the manifest holds the
stored form, see `StoredForm`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from typing import Any, NoReturn, Protocol, TypeAlias

import msgspec

from weightlease.errors import SafetensorsFormatError

MAX_HEADER_BYTES = 100_000_000
LENGTH_BYTES = 8
WRITER_METADATA = {"format": "pt", "host_weight_runtime": "1"}

# dtype -> bits of one element, str(torch.dtype) of the same element
DTYPES: dict[str, tuple[int, str]] = {
    "BOOL": (8, "torch.bool"),
    "F4": (4, "torch.float4_e2m1fn_x2"),
    "F6_E2M3": (6, ""),
    "F6_E3M2": (6, ""),
    "U8": (8, "torch.uint8"),
    "I8": (8, "torch.int8"),
    "F8_E5M2": (8, "torch.float8_e5m2"),
    "F8_E4M3": (8, "torch.float8_e4m3fn"),
    "F8_E8M0": (8, "torch.float8_e8m0fnu"),
    "F8_E4M3FNUZ": (8, "torch.float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (8, "torch.float8_e5m2fnuz"),
    "I16": (16, "torch.int16"),
    "U16": (16, "torch.uint16"),
    "F16": (16, "torch.float16"),
    "BF16": (16, "torch.bfloat16"),
    "I32": (32, "torch.int32"),
    "U32": (32, "torch.uint32"),
    "F32": (32, "torch.float32"),
    "C64": (64, "torch.complex64"),
    "F64": (64, "torch.float64"),
    "I64": (64, "torch.int64"),
    "U64": (64, "torch.uint64"),
}

_METADATA_KEY = "__metadata__"
_MAX_ELEMENTS = 1 << 60
_DIAGNOSIS_BYTES = 64
_LFS_PREFIX = b"version https://git-lfs"
_HTML = re.compile(rb"\s*<(?:!doctype|html|\?xml|head|body)", re.IGNORECASE)


class TensorSlice(msgspec.Struct, frozen=True, gc=False):
    """One tensor: `shape` in logical elements, [start, end) in bytes of the data section."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class StoredForm(msgspec.Struct, frozen=True, gc=False):
    """How a manifest describes a tensor: str(torch.dtype) and the shape that torch stores.

    F4 is packed in pairs along its last dimension. What torch has no dtype or packing for
    (F6, F4 with an odd last dimension) is plain bytes there; the file's header keeps the truth.
    """

    dtype: str
    shape: tuple[int, ...]


class Header(msgspec.Struct, frozen=True):
    """A checked header; `tensors` lie in this order, from byte `data_start` of the file on."""

    tensors: tuple[TensorSlice, ...]
    metadata: dict[str, str]
    data_start: int


class TensorDeclaration(Protocol):
    """What the writer side needs to know of a tensor."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _LooseEntry(_Entry, frozen=True, forbid_unknown_fields=False, gc=False):
    # stands for `__metadata__` too, whose members are unknown fields here
    dtype: str = ""
    shape: tuple[int, ...] = ()
    data_offsets: tuple[int, int] = (0, 0)


class _MetadataMember(msgspec.Struct, frozen=True):
    metadata: dict[str, str] | None = msgspec.field(default=None, name=_METADATA_KEY)


_loose_decoder = msgspec.json.Decoder(dict[str, _LooseEntry], strict=True)
_metadata_member_decoder = msgspec.json.Decoder(_MetadataMember, strict=True)
_object_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw], strict=True)
_entry_decoder = msgspec.json.Decoder(_Entry, strict=True)
_metadata_decoder = msgspec.json.Decoder(dict[str, str], strict=True)


class HeaderParser:
    """Reads a header from the first bytes of a file of `file_size` bytes, however they arrive."""

    def __init__(self, file_size: int) -> None:
        self.header: Header | None = None
        self._file_size = file_size
        self._seen = bytearray()
        self._need = min(file_size, LENGTH_BYTES)
        if file_size < LENGTH_BYTES:
            if file_size == 0:
                _refuse("empty", "the file is empty")
            _refuse("too_short", f"{file_size} bytes are too short for a header length")

    def feed(self, data: bytes | bytearray | memoryview) -> int:
        """Take what belongs to the header from the front of `data`; returns the bytes taken.

        Raises:
            SafetensorsFormatError: the way in which the header lies.

        """
        view = memoryview(data).cast("B")
        taken = 0
        while self.header is None and taken < len(view):
            step = view[taken : taken + self._need - len(self._seen)]
            self._seen += step
            taken += len(step)
            if len(self._seen) == self._need:
                self._advance()
        return taken

    def _advance(self) -> None:
        length = int.from_bytes(self._seen[:LENGTH_BYTES], "little")
        if length > MAX_HEADER_BYTES or length > self._file_size - LENGTH_BYTES:
            if len(self._seen) < min(self._file_size, _DIAGNOSIS_BYTES):
                self._need = min(self._file_size, _DIAGNOSIS_BYTES)
                return
            _refuse_length(length, self._file_size, bytes(self._seen))
        if len(self._seen) < LENGTH_BYTES + length:
            self._need = LENGTH_BYTES + length
            return
        self.header = parse_header(bytes(self._seen[LENGTH_BYTES:]), self._file_size)
        self._seen = bytearray()


def read_header(fd: int, file_size: int) -> Header:
    """Read and check the header of an open file of `file_size` bytes.

    Raises:
        SafetensorsFormatError: the way in which the header lies, or the file ended early.
        OSError: reading failed.

    """
    parser = HeaderParser(file_size)
    offset, step = 0, 64 * 1024
    while parser.header is None:
        data = os.pread(fd, min(step, file_size - offset), offset)
        if not data:
            _refuse("truncated", f"the file ended at {offset} of {file_size} bytes")
        parser.feed(data)
        offset += len(data)
        step = 4 * 1024 * 1024
    return parser.header


def parse_header(text: bytes, file_size: int) -> Header:
    """Check the JSON part of a header against a file of `file_size` bytes.

    Raises:
        SafetensorsFormatError: the way in which the header lies.

    """
    if not text.startswith(b"{"):
        _refuse("malformed", "the header does not start with '{'")
    entries, metadata = _decode_plain(text) or _decode_exactly(text)
    data_start = LENGTH_BYTES + len(text)
    tensors = _covering(entries, file_size - data_start)
    return Header(tensors, metadata, data_start)


def layout_header(declared: Iterable[TensorDeclaration]) -> tuple[bytes, Header]:
    """Header bytes, length included, for tensors stored in the order in which they are declared.

    Raises:
        SafetensorsFormatError: a name, dtype or shape that no file can hold.

    """
    document: dict[str, Any] = {_METADATA_KEY: WRITER_METADATA}
    cursor = 0
    for tensor in declared:
        if tensor.name in document:
            _refuse("duplicate_key", f"tensor {tensor.name[:200]!r} is declared twice")
        end = cursor + byte_size(tensor.name, tensor.dtype, tensor.shape)
        document[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [cursor, end],
        }
        cursor = end
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    text += b" " * (-len(text) % 8)
    header = parse_header(text, LENGTH_BYTES + len(text) + cursor)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text, header


def byte_size(name: str, dtype: str, shape: tuple[int, ...]) -> int:
    """Stored bytes of a tensor.

    Raises:
        SafetensorsFormatError: unknown dtype, negative or absurd shape, or part of a byte.

    """
    known = DTYPES.get(dtype)
    if known is None:
        _refuse("unknown_dtype", f"tensor {name[:200]!r} has unknown dtype {dtype[:40]!r}")
    elements = 1
    for size in shape:
        if size < 0:
            _refuse("negative", f"tensor {name[:200]!r} has a negative dimension")
        elements *= size
        if elements > _MAX_ELEMENTS or size > _MAX_ELEMENTS:
            _refuse("overflow", f"tensor {name[:200]!r} has more than 2^60 elements")
    bits = elements * known[0]
    if bits % 8:
        _refuse("part_of_byte", f"tensor {name[:200]!r} is {bits} bits long, not whole bytes")
    return bits // 8


def stored_form(tensor: TensorSlice) -> StoredForm:
    """Dtype and shape of `tensor` as a manifest describes it."""
    name = DTYPES[tensor.dtype][1]
    if tensor.dtype == "F4":
        if tensor.shape and tensor.shape[-1] % 2 == 0:
            return StoredForm(name, (*tensor.shape[:-1], tensor.shape[-1] // 2))
        name = ""
    if not name:
        return StoredForm("torch.uint8", (tensor.end - tensor.start,))
    return StoredForm(name, tensor.shape)


_Decoded: TypeAlias = tuple[list[tuple[str, "_Entry"]], dict[str, str]]


def _decode_plain(text: bytes) -> _Decoded | None:
    """Decode a header as every writer makes it, fast; None where that cannot be told.

    The decoder would keep the last of two equal keys, ignore unknown ones and read -0 as 0. Without
    escapes each string has two quotes, so a count of quotes that fits the decoded strings proves
    that nothing was dropped.
    """
    if b"\\" in text or b"-0" in text:
        return None
    try:
        members = _loose_decoder.decode(text)
        metadata = _metadata_member_decoder.decode(text).metadata
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    strings = 0 if metadata is None else 1 + 2 * len(metadata)
    members.pop(_METADATA_KEY, None)
    if text.count(b'"') != 2 * (strings + 5 * len(members)):
        return None
    return list(members.items()), metadata or {}


def _decode_exactly(text: bytes) -> _Decoded:
    try:
        members = _object_decoder.decode(text)
        raw_metadata = members.pop(_METADATA_KEY, None)
        metadata = {} if raw_metadata is None else _metadata_decoder.decode(raw_metadata)
        entries = [(name, _entry_decoder.decode(raw)) for name, raw in members.items()]
        json.loads(text, object_pairs_hook=_unique, parse_int=_natural)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise SafetensorsFormatError("malformed", f"the header is malformed: {error}") from error
    return entries, metadata


def _covering(entries: list[tuple[str, _Entry]], data_size: int) -> tuple[TensorSlice, ...]:
    entries.sort(key=_position)
    tensors = []
    sizes: dict[tuple[str, tuple[int, ...]], int] = {}
    cursor = 0
    for name, entry in entries:
        start, end = entry.data_offsets
        kind = (entry.dtype, entry.shape)
        size = sizes.get(kind, -1)
        if size < 0:
            size = sizes[kind] = byte_size(name, *kind)
        if not name:
            _refuse("malformed", "a tensor has an empty name")
        if end - start != size or start < 0:
            _refuse(
                "size_mismatch", f"tensor {name[:200]!r} needs {size} bytes, has [{start}, {end})"
            )
        if start != cursor:
            reason = "hole" if start > cursor else "overlap"
            _refuse(reason, f"{reason} before tensor {name[:200]!r}: [{cursor}, {start})")
        cursor = end
        tensors.append(TensorSlice(name, entry.dtype, entry.shape, start, end))
    if cursor > data_size:
        _refuse("truncated", f"the data ends at {data_size} of {cursor} bytes")
    if cursor < data_size:
        _refuse("trailing", f"{data_size - cursor} bytes follow the last tensor")
    return tuple(tensors)


def _position(named: tuple[str, _Entry]) -> tuple[int, int]:
    return named[1].data_offsets


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        _refuse("duplicate_key", f"the header holds {twice[:200]!r} twice")
    return found


def _natural(digits: str) -> int:
    if digits.startswith("-"):
        _refuse("negative", f"the header holds the negative number {digits[:40]}")
    return int(digits) if len(digits) < 40 else _MAX_ELEMENTS


def _refuse_length(length: int, file_size: int, start: bytes) -> NoReturn:
    if start.startswith(_LFS_PREFIX):
        _refuse("lfs_pointer", "the file is a git-lfs pointer, not weights; fetch the real file")
    if _HTML.match(start):
        _refuse("html", "the file is a web page, not weights")
    if length > MAX_HEADER_BYTES:
        _refuse("header_too_long", f"header length {length} is above {MAX_HEADER_BYTES}")
    _refuse("truncated", f"header length {length} does not fit a file of {file_size} bytes")


def _refuse(reason: str, message: str) -> NoReturn:
    raise SafetensorsFormatError(reason, message)
