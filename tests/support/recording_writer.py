"""An `ArtifactWriter` in memory that keeps its contract: declared sizes and digests are checked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from weightlease.errors import FailureCode, SafetensorsFormatError, Stage, WeightLeaseError
from weightlease.safetensors_format import parse_header
from weightlease.store.protocol import Buffer, FileWriter, TensorFileWriter, TensorSpec


class RecordingWriter:
    """Keeps every finished file; `longest_write` is the largest single write in bytes."""

    def __init__(self) -> None:
        self.payloads: dict[str, bytes] = {}
        self.assets: dict[str, bytes] = {}
        self.longest_write = 0

    @contextmanager
    def payload(self, name: str, size: int, sha256: str = "") -> Iterator[FileWriter]:
        """A payload file; its header is checked as a store does."""
        file = _File(self)
        yield file
        content = file.finished(name, size, sha256)
        length = int.from_bytes(content[:8], "little")
        if size < 8 or length > size - 8:
            message = f"{name} is no safetensors file"
            raise SafetensorsFormatError("truncated", message)
        parse_header(content[8 : 8 + length], size)
        self.payloads[name] = content

    @contextmanager
    def asset(self, path: str, size: int, sha256: str = "") -> Iterator[FileWriter]:
        """An asset."""
        file = _File(self)
        yield file
        self.assets[path] = file.finished(path, size, sha256)

    def tensors(
        self, name: str, specs: tuple[TensorSpec, ...]
    ) -> AbstractContextManager[TensorFileWriter]:
        """Not used by producers of verbatim files."""
        raise NotImplementedError


class _File:
    def __init__(self, writer: RecordingWriter) -> None:
        self._writer = writer
        self._content = bytearray()

    def write(self, data: Buffer) -> None:
        self._writer.longest_write = max(self._writer.longest_write, len(data))
        self._content += data

    def finished(self, name: str, size: int, sha256: str) -> bytes:
        actual = hashlib.sha256(self._content).hexdigest()
        if len(self._content) != size or (sha256 and actual != sha256):
            raise WeightLeaseError.of(
                Stage.VALIDATION, FailureCode.CHECKSUM_MISMATCH, f"{name} is not as declared"
            )
        return bytes(self._content)
