"""A folder as a source: a mounted claim, a host path or a local directory.

Everything is opened beneath one root. The root is the given folder; where that folder is a
snapshot of a Hugging Face cache (`<repo>/snapshots/<commit>` beside `<repo>/blobs`) it is `<repo>`,
because the snapshot's files are links to the blobs. Links to folders are not followed.

A file's size, device, inode, mtime and ctime are noted when it is listed and compared before and
after each reading: a source that moves is `SourceChanged`, never a mixture.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self, TypeAlias

from weightlease.reasons import Reason
from weightlease.source.beneath import Beneath, Refused
from weightlease.source.errors import SourceError, malformed
from weightlease.source.model import (
    CHUNK_BYTES,
    MAX_LISTED_FILES,
    Phase,
    Progress,
    SourceFile,
    Waiting,
    patient,
    silent,
)
from weightlease.source.random_access import read_at
from weightlease.source.selection import printable

MAX_DEPTH = 32

Guard: TypeAlias = tuple[int, int, int, int, int]


class FolderSource:
    """A component's folder at `path`/`component_path`; a context manager.

    Raises on construction:
        SourceError: `SourceNotFound` if the folder is missing, `SourceUnauthorized` if it may not
            be read, `SourceMalformed` if it is no folder below the root.

    """

    def __init__(self, path: str, component_path: str = ".", progress: Progress = silent) -> None:
        self.name = printable(path)
        self.revision = ""
        self._progress = progress
        self._guards: dict[str, Guard] = {}
        root, base = _root_of(path)
        self._base = [*base, *_plain_parts(component_path)]
        try:
            self._beneath = Beneath(root)
        except OSError as error:
            raise _unreachable(self.name, error) from error
        try:
            os.close(self._open_folder(self._base))
        except SourceError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the root."""
        self._beneath.close()

    def files(self) -> tuple[SourceFile, ...]:
        """Every file below the component; unreadable ones are listed with their problem."""
        self._guards.clear()
        found: list[SourceFile] = []
        for file in self._walk(()):
            found.append(file)
            if len(found) > MAX_LISTED_FILES:
                raise malformed(f"{self.name} holds more than {MAX_LISTED_FILES} files")
        return tuple(sorted(found, key=lambda file: file.path))

    def read(self, file: SourceFile, limit: int) -> bytes:
        """A small file's bytes."""
        if file.size > limit:
            raise malformed(f"{file.path!r} of {file.size} bytes exceeds the limit of {limit}")
        with self.open(file) as opened:
            return b"".join(bytes(chunk) for chunk in opened.chunks())

    def hashed(self, files: Sequence[SourceFile]) -> tuple[SourceFile, ...]:
        """The same files with their sha256; the folder stood still meanwhile, or SourceChanged."""
        total = sum(file.size for file in files)
        done = []
        for file in files:
            with self.open(file) as opened:
                digest = opened.digest(lambda count: self._progress(Phase.HASH, count, total))
            done.append(SourceFile(file.path, file.size, digest))
        for file in files:
            with self.open(file):
                pass
        return tuple(done)

    @contextmanager
    def open(
        self,
        file: SourceFile,
        waiting: Waiting = patient,  # noqa: ARG002 - a file of a folder is there at once
    ) -> Iterator[OpenFolderFile]:
        """Open one listed file; its guard is compared on entry and, if nothing failed, on exit."""
        guard = self._guards.get(file.path)
        if guard is None:
            raise SourceError(Reason.SOURCE_CHANGED, f"{file.path!r} was not listed")
        try:
            fd = self._beneath.open([*self._base, *file.path.split("/")])
        except Refused as refused:
            cause = refused.__cause__
            if isinstance(cause, OSError) and cause.errno not in _GONE:
                raise _unreachable(repr(file.path), cause) from refused
            raise _changed(file, refused.problem) from refused
        try:
            opened = OpenFolderFile(fd, file, guard)
            opened.require_unchanged()
            yield opened
            opened.require_unchanged()
        finally:
            os.close(fd)

    def _open_folder(self, parts: Sequence[str]) -> int:
        where = f"{self.name}, folder {printable('/'.join(parts) or '.')!r}"
        try:
            fd = self._beneath.open(parts)
        except Refused as refused:
            if isinstance(refused.__cause__, OSError):
                raise _unreachable(where, refused.__cause__) from refused
            raise malformed(f"{where}: {refused.problem}") from refused
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            os.close(fd)
            raise malformed(f"{where} is not a folder")
        return fd

    def _walk(self, parts: tuple[str, ...]) -> Iterator[SourceFile]:
        if len(parts) > MAX_DEPTH:
            raise malformed(f"{self.name} is nested more than {MAX_DEPTH} folders deep")
        fd = self._open_folder([*self._base, *parts])
        try:
            with os.scandir(fd) as entries:
                # hidden names are never selected, and `.git` and `.cache` can be huge
                listed = sorted(
                    (entry.name, entry.is_dir(follow_symlinks=False))
                    for entry in entries
                    if not entry.name.startswith(".")
                )
        except OSError as error:
            raise _unreachable(f"{self.name}, {'/'.join(parts)}", error) from error
        finally:
            os.close(fd)
        for name, is_folder in listed:
            path = (*parts, name)
            if is_folder:
                yield from self._walk_or_problem(path)
            else:
                yield self._listed(path)

    def _walk_or_problem(self, parts: tuple[str, ...]) -> Iterator[SourceFile]:
        try:
            os.close(self._open_folder([*self._base, *parts]))
        except SourceError as error:
            yield SourceFile("/".join(parts), problem=error.failure.message)
            return
        yield from self._walk(parts)

    def _listed(self, parts: tuple[str, ...]) -> SourceFile:
        path = "/".join(parts)
        try:
            path.encode()
            fd = self._beneath.open([*self._base, *parts])
        except UnicodeEncodeError:
            return SourceFile(path, problem="its name is not UTF-8")
        except Refused as refused:
            return SourceFile(path, problem=refused.problem)
        try:
            status = os.fstat(fd)
        finally:
            os.close(fd)
        if not stat.S_ISREG(status.st_mode):
            return SourceFile(path, problem="a link to a folder, which is not followed")
        self._guards[path] = _guard(status)
        return SourceFile(path, status.st_size)


class OpenFolderFile:
    """One open file of a folder."""

    def __init__(self, fd: int, file: SourceFile, guard: Guard) -> None:
        self._fd = fd
        self._file = file
        self._guard = guard

    def chunks(self) -> Iterator[memoryview]:
        """The file's bytes; longer or shorter than listed is SourceChanged."""
        buffer = memoryview(bytearray(CHUNK_BYTES))
        offset = 0
        while True:
            try:
                count = os.preadv(self._fd, [buffer], offset)
            except OSError as error:
                raise _unreachable(repr(self._file.path), error) from error
            if count == 0:
                break
            offset += count
            if offset > self._file.size:
                break
            yield buffer[:count]
        if offset != self._file.size:
            raise _changed(self._file, f"{offset} bytes instead of {self._file.size}")

    def read_at(self, offset: int, size: int) -> bytearray:
        """See `RandomAccessFile`."""
        return read_at(self._fd, self._file, offset, size)

    def digest(self, progress: Callable[[int], None] | None = None) -> str:
        """Sha256 of the bytes as they are now."""
        hasher = hashlib.sha256()
        for chunk in self.chunks():
            hasher.update(chunk)
            if progress is not None:
                progress(len(chunk))
        return hasher.hexdigest()

    def verify(self) -> None:
        """Compare guard and bytes with the listing."""
        self.require_unchanged()
        actual = self.digest()
        if self._file.sha256 and actual != self._file.sha256:
            raise _changed(
                self._file, f"its sha256 is {actual} and was {self._file.sha256} when listed"
            )

    def require_unchanged(self) -> None:
        """Compare the open file's guard with the one taken when it was listed."""
        if _guard(os.fstat(self._fd)) != self._guard:
            raise _changed(self._file, "its size, inode or time stamps differ")


def _root_of(path: str) -> tuple[str, list[str]]:
    """The folder nothing may be opened outside of, and the parts that lead from it to `path`."""
    absolute = os.path.abspath(path)
    snapshots, name = os.path.split(absolute)
    repository, folder = os.path.split(snapshots)
    if folder == "snapshots" and os.path.isdir(os.path.join(repository, "blobs")):
        return repository, [folder, name]
    return absolute, []


def _plain_parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if path.startswith("/") or ".." in parts or "\\" in path or "\0" in path:
        raise malformed(f"component path {path!r} must be relative, without '..' or backslashes")
    return parts


def _guard(status: os.stat_result) -> Guard:
    return (
        status.st_size,
        status.st_dev,
        status.st_ino,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _changed(file: SourceFile, how: str) -> SourceError:
    return SourceError(
        Reason.SOURCE_CHANGED,
        f"{printable(file.path)!r} changed while it was read: {how}; a source must stand still",
        path=printable(file.path),
    )


_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
_UNREACHABLE = {
    errno.ENOENT: Reason.SOURCE_NOT_FOUND,
    errno.ENOTDIR: Reason.SOURCE_NOT_FOUND,
    errno.EACCES: Reason.SOURCE_UNAUTHORIZED,
    errno.EPERM: Reason.SOURCE_UNAUTHORIZED,
}


def _unreachable(where: str, error: OSError) -> SourceError:
    reason = _UNREACHABLE.get(error.errno or 0, Reason.SOURCE_UNAVAILABLE)
    return SourceError(reason, f"{where}: {error.strerror or error}")
