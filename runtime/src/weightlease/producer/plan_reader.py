"""Reading runs of source tensors in bounded memory.

Each leaf has one window of at most `WINDOW_BYTES`, moved forward as runs advance, so the many short
runs of a split along rows cost few reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weightlease.producer.plan_tensors import Leaf, Node, runs
from weightlease.safetensors_format import DTYPES
from weightlease.source.model import RandomAccessFile

WINDOW_BYTES = 4 * 1024 * 1024


def element_bytes(dtype: str) -> int:
    """Size of one element in bytes; a plan holds no dtype of less than a byte."""
    return DTYPES[dtype][0] // 8


def pieces(node: Node, files: Mapping[str, RandomAccessFile]) -> Iterator[memoryview]:
    """The bytes of `node`, front to back, in pieces of at most two windows.

    Raises:
        SourceError: a file cannot be read, or is not the one that was listed.

    """
    windows: dict[str, _Window] = {}
    pending = bytearray()
    for leaf, first, count in runs(node):
        item = element_bytes(leaf.dtype)
        window = windows.get(leaf.name)
        if window is None:
            window = windows[leaf.name] = _Window(leaf, files[leaf.file])
        begin, left = first * item, count * item
        while left:
            step = min(left, WINDOW_BYTES)
            pending += window.read(begin, step)
            begin, left = begin + step, left - step
            if len(pending) >= WINDOW_BYTES:
                yield memoryview(pending)
                pending = bytearray()
    if pending:
        yield memoryview(pending)


class _Window:
    def __init__(self, leaf: Leaf, file: RandomAccessFile) -> None:
        self._leaf = leaf
        self._file = file
        self._size = element_bytes(leaf.dtype)
        for dimension in leaf.shape:
            self._size *= dimension
        self._begin = 0
        self._data = memoryview(b"")

    def read(self, begin: int, size: int) -> memoryview:
        """Bytes [begin, begin + size) of the tensor."""
        offset = begin - self._begin
        if offset < 0 or offset + size > len(self._data):
            length = min(max(size, WINDOW_BYTES), self._size - begin)
            self._data = memoryview(self._file.read_at(self._leaf.offset + begin, length))
            self._begin, offset = begin, 0
        return self._data[offset : offset + size]
