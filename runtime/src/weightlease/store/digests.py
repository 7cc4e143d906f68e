"""Digests of a payload while its bytes stream by: its header is parsed, each tensor is hashed."""

from __future__ import annotations

import hashlib

from weightlease.safetensors_format import Header, HeaderParser, TensorSlice

_EMPTY = hashlib.sha256().hexdigest()


class TensorDigests:
    """Takes a safetensors file front to back and hashes every tensor in it."""

    def __init__(self, file_size: int) -> None:
        self._parser = HeaderParser(file_size)
        self._pending: list[TensorSlice] = []
        self._digest = hashlib.sha256()
        self._left = 0
        self._begun = False
        self._found: dict[str, str] = {}

    @property
    def header(self) -> Header | None:
        """The header, once its last byte has been seen."""
        return self._parser.header

    @property
    def by_name(self) -> dict[str, str]:
        """sha256 of each tensor that is complete."""
        return self._found

    def update(self, data: memoryview) -> None:
        """Take the next bytes of the file.

        Raises:
            SafetensorsFormatError: the header lies.

        """
        position = self._parser.feed(data) if self.header is None else 0
        if self.header is None:
            return
        if not self._begun:
            self._begin(self.header)
        while position < len(data):
            step = data[position : position + self._left]
            self._digest.update(step)
            self._left -= len(step)
            position += len(step)
            if not self._left:
                self._finish()

    def _begin(self, header: Header) -> None:
        self._begun = True
        for tensor in header.tensors:
            if tensor.start == tensor.end:
                self._found[tensor.name] = _EMPTY
        self._pending = [each for each in reversed(header.tensors) if each.start != each.end]
        self._left = self._pending[-1].end - self._pending[-1].start if self._pending else 0

    def _finish(self) -> None:
        self._found[self._pending.pop().name] = self._digest.hexdigest()
        self._digest = hashlib.sha256()
        if self._pending:
            self._left = self._pending[-1].end - self._pending[-1].start
