"""Which tensors each shard holds, read from the headers that pass by while files are streamed.

Checks what no single file can show: one name in two shards, and an index that promises tensors
which its shard lacks. Everything else about a header is the store's to judge.
"""

from __future__ import annotations

import struct

import msgspec

from weightlease.source.errors import malformed
from weightlease.source.shard_index import ShardIndex

MAX_HEADER_BYTES = 100_000_000
_LENGTH = struct.Struct("<Q")
# Raw leaves each entry undecoded: names alone cost little memory.
_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


class TensorNames:
    """The names seen so far over all shards of one artifact."""

    def __init__(self, index: ShardIndex | None = None) -> None:
        self._index = index
        self._file_of: dict[str, str] = {}

    def of(self, file: str) -> HeaderReader:
        """A reader for the next shard's bytes."""
        return HeaderReader(self, file)

    def add(self, file: str, names: set[str]) -> None:
        """Take over one shard's names.

        Raises:
            SourceError: `SourceMalformed` with the tensor and both files.

        """
        for name in sorted(names):
            other = self._file_of.setdefault(name, file)
            if other != file:
                raise malformed(
                    f"tensor {name[:200]!r} is in both {other!r} and {file!r}; remove one copy, "
                    "or list the right shards in an index",
                    tensor=name[:200],
                    files=[other, file],
                )
        if self._index is not None:
            absent = sorted(self._index.tensors_of(file) - names)
            if absent:
                raise malformed(
                    f"index {self._index.path!r} places {len(absent)} tensors in {file!r} which "
                    f"are not there, the first is {absent[0][:200]!r}",
                    tensor=absent[0][:200],
                    files=[file],
                )


class HeaderReader:
    """Collects one file's header from its first chunks and hands over its names."""

    def __init__(self, names: TensorNames, file: str) -> None:
        self._names = names
        self._file = file
        self._collected = bytearray()
        self._finished = False

    def feed(self, chunk: memoryview) -> None:
        """The next bytes of the file, in order."""
        offset = 0
        while offset < len(chunk) and not self._finished:
            piece = chunk[offset : offset + self._wanted() - len(self._collected)]
            self._collected += piece
            offset += len(piece)
            if len(self._collected) >= 8 and len(self._collected) == self._wanted():
                self._finish()

    def _wanted(self) -> int:
        if len(self._collected) < 8:
            return 8
        (length,) = _LENGTH.unpack_from(self._collected)
        return 8 + min(int(length), MAX_HEADER_BYTES)

    def _finish(self) -> None:
        self._finished = True
        header, self._collected = bytes(self._collected[8:]), bytearray()
        try:
            names = set(_decoder.decode(header))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return  # the store refuses the file and says why
        self._names.add(self._file, names - {"__metadata__"})
