"""The complete layout of a model's registered tensors, and where each lies in GPU memory.

JSON, at most 64 MiB, sent beside the descriptors of the memory it describes:

    {"version": 1,
     "module": "<module>.<qualified class name>",
     "nbytes": <size of the arena: whole granules of the device>,
     "blocks": [{"offset": <from the arena's start, multiple of 256>, "nbytes"}, …],
     "tensors": [{"name", "kind": "parameter" | "buffer", "owner": "<class that registers it>",
                  "dtype": "bfloat16", "shape", "stride": <in elements>,
                  "block": <index>, "shift": <bytes from the block's start>,
                  "persistent": true, "tied_to": "" | "<name of the same tensor>"}, …]}

A block is a run of bytes that overlapping tensors share, or that one tensor has alone; bytes of one
storage that nobody shares are different blocks. So `block` and `shift` say which tensors alias and
how, independent of how the source happened to be allocated. `tied_to` is identity: one tensor
object under several names. Tensors are sorted by name, blocks by their first tensor.

Blocks start at multiples of 256 bytes: on other alignments kernels may round differently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from weightlease.gpu.errors import LayoutError
from weightlease.manifest import TensorKind

LAYOUT_VERSION = 1
ALIGNMENT = 256
MAX_LAYOUT_BYTES = 64 * 1024 * 1024
MAX_TENSORS = 1_000_000
MAX_NAME = 1024
MAX_DIMENSIONS = 64
MAX_BYTES = 2**48

# torch's names without their prefix, and the size of one element in bytes
ITEM_SIZE = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "uint32": 4,
    "int32": 4,
    "uint64": 8,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}


class TensorLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One registered name; `shape` and `stride` in elements, `shift` in bytes."""

    name: str
    kind: TensorKind
    owner: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    block: int
    shift: int
    persistent: bool = True
    tied_to: str = ""

    @property
    def extent(self) -> int:
        """Bytes from the first to behind the last element."""
        return extent(self.shape, self.stride) * ITEM_SIZE[self.dtype]


class Block(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A run of bytes; `offset` from the start of the arena."""

    offset: int
    nbytes: int


class ModelLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model's registered tensors and their place; sizes in bytes."""

    version: int
    module: str
    nbytes: int
    blocks: tuple[Block, ...]
    tensors: tuple[TensorLayout, ...]

    def place(self, tensor: TensorLayout) -> int:
        """Where `tensor` starts, in bytes from the start of the arena."""
        return self.blocks[tensor.block].offset + tensor.shift

    def names_in(self, begin: int, end: int) -> Iterator[str]:
        """Names of tensors with a byte in `begin`..`end` of the arena."""
        for tensor in self.tensors:
            start = self.place(tensor)
            if start < end and begin < start + tensor.extent:
                yield tensor.name


_decoder = msgspec.json.Decoder(ModelLayout, strict=True)


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to behind the last; 0 for a tensor without elements."""
    last = 0
    for size, step in zip(shape, stride, strict=True):
        if size == 0:
            return 0
        last += (size - 1) * step
    return last + 1


def place_blocks(sizes: Sequence[int]) -> tuple[Block, ...]:
    """Blocks of `sizes` bytes one after the other, each aligned."""
    blocks: list[Block] = []
    offset = 0
    for size in sizes:
        blocks.append(Block(offset, size))
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    return tuple(blocks)


def used_bytes(blocks: Sequence[Block]) -> int:
    """Bytes up to the end of the last block."""
    return max((block.offset + block.nbytes for block in blocks), default=0)


def encode_layout(layout: ModelLayout) -> bytes:
    """The layout as JSON."""
    return msgspec.json.encode(layout)


def decode_layout(data: bytes | memoryview) -> ModelLayout:
    """A layout from a peer, with everything it says checked.

    Raises:
        LayoutError: what is wrong with it.

    """
    layout = decode_blocks(data)
    require_tensors(layout)
    return layout


def decode_blocks(data: bytes | memoryview) -> ModelLayout:
    """A layout from a peer whose tensors are yet to be compared with a module's own: `differences`.

    Raises:
        LayoutError: what is wrong with its form or its blocks.

    """
    if len(data) > MAX_LAYOUT_BYTES:
        raise LayoutError(f"a layout of {len(data)} bytes exceeds {MAX_LAYOUT_BYTES}")
    try:
        layout = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LayoutError(f"malformed layout: {error}") from error
    require_blocks(layout)
    return layout


def require_blocks(layout: ModelLayout) -> None:
    """Blocks are aligned, in order, apart and inside the arena.

    Raises:
        LayoutError: which block is not.

    """
    if layout.version != LAYOUT_VERSION:
        raise LayoutError(f"layout version {layout.version} is not {LAYOUT_VERSION}")
    if not 0 < layout.nbytes <= MAX_BYTES or len(layout.tensors) > MAX_TENSORS:
        raise LayoutError(
            f"{len(layout.tensors)} tensors in {layout.nbytes} bytes are out of range"
        )
    end = 0
    for number, block in enumerate(layout.blocks):
        if block.offset % ALIGNMENT or block.offset < end or block.nbytes < 0:
            raise LayoutError(f"block {number} at {block.offset} is misaligned or out of order")
        end = block.offset + block.nbytes
        if end > layout.nbytes:
            raise LayoutError(f"block {number} ends at {end}, behind {layout.nbytes}")


def require_tensors(layout: ModelLayout) -> None:
    """Every tensor lies inside its block, and ties lead to an equal tensor.

    Raises:
        LayoutError: which tensor does not.

    """
    seen: dict[str, TensorLayout] = {}
    last = ""
    for tensor in layout.tensors:
        if not 0 < len(tensor.name) <= MAX_NAME or (seen and tensor.name <= last):
            raise LayoutError(f"name {tensor.name[:80]!r} is empty, too long or out of order")
        last = tensor.name
        _require_inside(layout, tensor)
        if tensor.tied_to:
            original = seen.get(tensor.tied_to)
            if original is None or original.tied_to or not _same_tensor(original, tensor):
                raise LayoutError(
                    f"{tensor.name!r} is tied to {tensor.tied_to[:80]!r}, not its like"
                )
        if tensor.kind is TensorKind.PARAMETER and not tensor.persistent:
            raise LayoutError(f"parameter {tensor.name!r} is not persistent")
        seen[tensor.name] = tensor


def _require_inside(layout: ModelLayout, tensor: TensorLayout) -> None:
    item = ITEM_SIZE.get(tensor.dtype)
    if item is None:
        raise LayoutError(f"{tensor.name!r} has unknown dtype {tensor.dtype[:40]!r}")
    dimensions = len(tensor.shape)
    numbers = (*tensor.shape, *tensor.stride, tensor.shift)
    if len(tensor.stride) != dimensions or dimensions > MAX_DIMENSIONS:
        raise LayoutError(
            f"{tensor.name!r} has {dimensions} sizes and {len(tensor.stride)} strides"
        )
    if not all(0 <= number <= MAX_BYTES for number in numbers) or tensor.shift % item:
        raise LayoutError(f"{tensor.name!r} has a size, stride or shift out of range")
    if not 0 <= tensor.block < len(layout.blocks):
        raise LayoutError(f"{tensor.name!r} is in block {tensor.block}, which is none")
    if tensor.shift + tensor.extent > layout.blocks[tensor.block].nbytes:
        raise LayoutError(f"{tensor.name!r} ends behind its block {tensor.block}")


def _same_tensor(one: TensorLayout, other: TensorLayout) -> bool:
    fields = ("kind", "dtype", "shape", "stride", "block", "shift")
    return all(getattr(one, field) == getattr(other, field) for field in fields)


def differences(mine: ModelLayout, theirs: ModelLayout) -> list[str]:
    """Every difference that would make binding wrong; empty when the layouts agree completely.

    Class, names, kinds, owners, dtypes, shapes, strides, offsets, aliases, ties and persistence
    count; where the blocks lie in the arena does not.
    """
    sizes = [block.nbytes for block in theirs.blocks]
    same_blocks = [block.nbytes for block in mine.blocks] == sizes
    if mine.module == theirs.module and same_blocks and mine.tensors == theirs.tensors:
        return []
    found: list[str] = []
    if mine.module != theirs.module:
        found.append(f"class {mine.module} here and {theirs.module} there")
    here = {tensor.name: tensor for tensor in mine.tensors}
    there = {tensor.name: tensor for tensor in theirs.tensors}
    found += [f"{name} is only here" for name in here.keys() - there.keys()]
    found += [f"{name} is only there" for name in there.keys() - here.keys()]
    for name in sorted(here.keys() & there.keys()):
        found += _tensor_differences(here[name], there[name])
    if not found:
        found.append("aliased bytes differ in size")
    return sorted(found)


def _tensor_differences(here: TensorLayout, there: TensorLayout) -> Iterator[str]:
    if here == there:
        return
    for field in TensorLayout.__struct_fields__:
        one, other = getattr(here, field), getattr(there, field)
        if one != other:
            yield f"{here.name}: {field} {one!s} here and {other!s} there"
