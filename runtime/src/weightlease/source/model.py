"""What a source is: a fixed list of files, and the bytes of each, checked against that list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec

# Reads and writes of a file go in pieces of this many bytes; a producer holds one at a time.
CHUNK_BYTES = 4 * 1024 * 1024
MAX_LISTED_FILES = 100_000


class Phase(StrEnum):
    """What a producer is busy with."""

    HASH = "hash"
    DOWNLOAD = "download"
    PUBLISH = "publish"


Progress: TypeAlias = Callable[[Phase, int, int], None]
"""Called with the phase, the bytes done since the last call, and the phase's total in bytes."""


Waiting: TypeAlias = Callable[[], None]
"""Called again and again while a source fetches; what it raises ends the fetch."""


def patient() -> None:
    """Nobody waits for the fetch."""


def silent(_phase: Phase, _done: int, _total: int) -> None:
    """No progress shown."""


class SourceFile(msgspec.Struct, frozen=True):
    """One file as the source lists it.

    `path` is relative to the component, with `/`; `size` is in bytes. `sha256` is empty where the
    listing has none; `git_sha1` is the git blob digest that the Hub gives for small files.
    `problem` says why a listed file cannot be read: it matters only if the file is selected.
    """

    path: str
    size: int = 0
    sha256: str = ""
    git_sha1: str = ""
    problem: str = ""


class OpenFile(Protocol):
    """One file of a source, open for one pass over its bytes."""

    def chunks(self) -> Iterator[memoryview]:
        """The file's bytes, front to back; each piece is valid until the next one is asked for.

        Raises:
            SourceError: the file is not, or no longer, the one that was listed.

        """

    def verify(self) -> None:
        """Read the file again and compare it with the listing: size and sha256.

        Raises:
            SourceError: `ChecksumMismatch` or `SourceChanged`, with expected and actual.

        """


@runtime_checkable
class RandomAccessFile(OpenFile, Protocol):
    """An open file that can be read anywhere, as often as needed."""

    def read_at(self, offset: int, size: int) -> bytearray:
        """Exactly `size` bytes from byte `offset` on.

        Raises:
            SourceError: the file ends before, or cannot be read.

        """


class Source(Protocol):
    """An immutable canonical checkpoint, seen from one component's folder."""

    @property
    def name(self) -> str:
        """The source in messages, without secrets."""

    @property
    def revision(self) -> str:
        """The commit, or empty where the fingerprint stands in for it."""

    def files(self) -> Sequence[SourceFile]:
        """Every file below the component, sorted by path.

        Raises:
            SourceError: the source is unreachable, unreadable or too large to list.

        """

    def read(self, file: SourceFile, limit: int) -> bytes:
        """A small file's bytes, checked against the listing.

        Raises:
            SourceError: larger than `limit` bytes, unreadable, or changed.

        """

    def hashed(self, files: Sequence[SourceFile]) -> tuple[SourceFile, ...]:
        """The same files with every sha256 known, and nothing changed while it was found out.

        Raises:
            SourceError: a file is unreadable, or the source changed.

        """

    def open(
        self, file: SourceFile, waiting: Waiting = patient
    ) -> AbstractContextManager[OpenFile]:
        """Open one file of the listing, which may take as long as a download.

        Raises:
            SourceError: it is unreadable, gone, or changed since it was listed.

        """
