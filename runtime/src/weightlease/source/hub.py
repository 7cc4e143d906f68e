"""A repository of the Hugging Face Hub at one commit as a source.

huggingface_hub lists and downloads; the tree listing gives sha256 for LFS files and a git blob
digest for the small rest. Small files are fetched first and checked against that digest, so every
sha256, and with it the key, is known before a weight byte is read. Large files come one at a time
into the scratch folder, are read once and deleted. Nothing is cached, nothing is written elsewhere.

    https://huggingface.co/docs/huggingface_hub/package_reference/hf_api
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Self

from weightlease.errors import WeightLeaseError
from weightlease.reasons import Reason
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

DEFAULT_ENDPOINT = "https://huggingface.co"
# Larger files without a sha256 in the listing do not stay in the scratch folder: the Hub has none.
MAX_KEPT_BYTES = 16 * 1024 * 1024
# What a file's answer may be longer than the file: bodies of redirects and errors.
_BODY_SLACK = 64 * 1024
# No file system holds a larger file.
_MAX_FILE_BYTES = 2**63 - 1
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class HubAccess:
    """How to reach the Hub. `timeout` in seconds per connection attempt and per read."""

    endpoint: str = DEFAULT_ENDPOINT
    token: str = field(default="", repr=False)
    retries: int = 5
    timeout: float = 30.0


class HubSource:
    """`repo` at `commit` (40 hex), seen from `component_path`; a context manager.

    `scratch` is a folder with room for the largest file. Owns huggingface_hub's client of this
    process until it is closed: one HubSource at a time.

    Raises on construction:
        SourceError: `RequestInvalid` for a revision that is no commit.

    """

    def __init__(
        self,
        repo: str,
        commit: str,
        *,
        scratch: str,
        access: HubAccess,
        component_path: str = ".",
        progress: Progress = silent,
    ) -> None:
        if _COMMIT.fullmatch(commit) is None:
            raise SourceError(
                Reason.REQUEST_INVALID,
                f"revision {commit!r} is no commit of 40 hex digits; branches and tags move",
            )
        self.name = f"{repo}@{commit[:12]}"
        self.revision = commit
        self._repo = repo
        self._prefix = _prefix(component_path)
        self._endpoint = access.endpoint.rstrip("/")
        self._token: str | bool = access.token or False
        self._progress = progress
        self._folder = tempfile.mkdtemp(prefix="hub-", dir=scratch)
        self._kept: dict[str, str] = {}
        self._transport = _install_client(self._endpoint, commit, access)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete everything fetched and give the client back."""
        _restore_client()
        shutil.rmtree(self._folder, ignore_errors=True)

    def files(self) -> tuple[SourceFile, ...]:
        """The tree at the commit, below the component."""
        from huggingface_hub import HfApi
        from huggingface_hub.hf_api import RepoFile

        what = f"listing {self.name}"
        folder = self._prefix.rstrip("/") or None
        try:
            entries = HfApi(endpoint=self._endpoint, token=self._token).list_repo_tree(
                self._repo, folder, recursive=True, revision=self.revision
            )
            # a page link can lead round in circles
            listed = list(islice(entries, MAX_LISTED_FILES + 1))
        except Exception as error:
            raise _translate(error, what) from error
        if len(listed) > MAX_LISTED_FILES:
            raise malformed(f"{what}: more than {MAX_LISTED_FILES} entries")
        found = [self._listed(entry) for entry in listed if isinstance(entry, RepoFile)]
        return tuple(sorted(found, key=lambda file: file.path))

    def read(self, file: SourceFile, limit: int) -> bytes:
        """A small file's bytes, checked against its digest."""
        if file.size > limit:
            raise malformed(f"{file.path!r} of {file.size} bytes exceeds the limit of {limit}")
        with self.open(file) as opened:
            opened.verify()
            return b"".join(bytes(chunk) for chunk in opened.chunks())

    def hashed(self, files: Sequence[SourceFile]) -> tuple[SourceFile, ...]:
        """The same files; those without a sha256 in the listing are fetched for it."""
        return tuple(file if file.sha256 else self._fetched(file) for file in files)

    @contextmanager
    def open(self, file: SourceFile, waiting: Waiting = patient) -> Iterator[OpenHubFile]:
        """Fetch one file unless it is at hand; it is deleted on exit."""
        with contextlib.ExitStack() as stack:
            location = self._kept.get(file.path, "")
            if not location:
                folder = tempfile.mkdtemp(prefix="file-", dir=self._folder)
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
                location = self._download(file, folder, waiting)
            descriptor = os.open(location, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            yield OpenHubFile(descriptor, file)

    def _fetched(self, file: SourceFile) -> SourceFile:
        folder = tempfile.mkdtemp(prefix="kept-", dir=self._folder)
        location = self._download(file, folder, patient)
        descriptor = os.open(location, os.O_RDONLY | os.O_CLOEXEC)
        try:
            opened = OpenHubFile(descriptor, file)
            opened.verify()
            digest = opened.digest(hashlib.sha256())
        finally:
            os.close(descriptor)
        if file.size <= MAX_KEPT_BYTES:
            self._kept[file.path] = location
        else:
            shutil.rmtree(folder)
        return SourceFile(file.path, file.size, digest, file.git_sha1)

    def _download(self, file: SourceFile, folder: str, waiting: Waiting) -> str:
        from huggingface_hub import hf_hub_download

        what = f"fetching {file.path!r} of {self.name}"
        _require_room(folder, file, what)
        self._transport.body_limit = file.size + _BODY_SLACK

        def on_bytes(count: int) -> None:
            self._progress(Phase.DOWNLOAD, count, file.size)
            waiting()

        self._transport.on_bytes = on_bytes
        try:
            location = hf_hub_download(
                self._repo,
                self._prefix + file.path,
                revision=self.revision,
                local_dir=folder,
                cache_dir=os.path.join(folder, "cache"),
                endpoint=self._endpoint,
                token=self._token,
            )
        except Exception as error:
            raise _translate(error, what) from error
        actual = os.stat(location, follow_symlinks=False).st_size
        if actual != file.size:
            raise _mismatch(file, f"{file.size} bytes", f"{actual} bytes")
        return str(location)

    def _listed(self, entry: Any) -> SourceFile:
        path, size, sha1 = entry.path, entry.size, entry.blob_id
        sha256 = entry.lfs.sha256 if entry.lfs is not None else ""
        if not isinstance(path, str) or not path.startswith(self._prefix):
            raise malformed(f"{self.name} lists {path!r}, which is not below the component")
        if type(size) is not int or not 0 <= size <= _MAX_FILE_BYTES:
            raise malformed(f"{self.name} lists {path!r} with size {str(size)[:40]!r}")
        if not isinstance(sha1, str) or _COMMIT.fullmatch(sha1) is None:
            raise malformed(f"{self.name} lists {path!r} without a git digest")
        if sha256 and _SHA256.fullmatch(sha256) is None:
            raise malformed(f"{self.name} lists {path!r} with sha256 {str(sha256)[:80]!r}")
        relative = path[len(self._prefix) :]
        return SourceFile(relative, size, sha256, "" if sha256 else sha1)


class OpenHubFile:
    """One fetched file."""

    def __init__(self, descriptor: int, file: SourceFile) -> None:
        self._descriptor = descriptor
        self._file = file

    def chunks(self) -> Iterator[memoryview]:
        """The file's bytes."""
        buffer = memoryview(bytearray(CHUNK_BYTES))
        offset = 0
        while count := os.preadv(self._descriptor, [buffer], offset):
            offset += count
            yield buffer[:count]

    def read_at(self, offset: int, size: int) -> bytearray:
        """See `RandomAccessFile`."""
        return read_at(self._descriptor, self._file, offset, size)

    def digest(self, hasher: hashlib._Hash) -> str:
        """The bytes' digest by `hasher`, in hex."""
        for chunk in self.chunks():
            hasher.update(chunk)
        return hasher.hexdigest()

    def verify(self) -> None:
        """Compare the bytes with the listing's digest: sha256, or git's sha1 of a blob."""
        if self._file.sha256:
            expected, actual = self._file.sha256, self.digest(hashlib.sha256())
        else:
            # git's blob digest is sha1 over a header and the content
            blob = hashlib.sha1(b"blob %d\0" % self._file.size, usedforsecurity=False)
            expected, actual = self._file.git_sha1, self.digest(blob)
        if actual != expected:
            raise _mismatch(self._file, expected, actual)


def _prefix(component_path: str) -> str:
    parts = [part for part in component_path.split("/") if part not in {"", "."}]
    if component_path.startswith("/") or ".." in parts or "\\" in component_path:
        raise malformed(
            f"component path {component_path!r} must be relative, without '..' or backslashes"
        )
    return "".join(f"{part}/" for part in parts)


def _require_room(folder: str, file: SourceFile, what: str) -> None:
    status = os.statvfs(folder)
    available = status.f_bavail * status.f_frsize
    if file.size > available:
        raise SourceError(
            Reason.INSUFFICIENT_CAPACITY,
            f"{what}: {file.size} bytes do not fit into the scratch volume with {available} bytes "
            "free; enlarge it",
            needed=file.size,
            available=available,
        )


def _mismatch(file: SourceFile, expected: str, actual: str) -> SourceError:
    return SourceError(
        Reason.CHECKSUM_MISMATCH,
        f"{printable(file.path)!r} arrived as {actual} and the Hub lists {expected}",
        path=file.path,
        expected=expected,
        actual=actual,
    )


def _translate(error: Exception, what: str) -> WeightLeaseError:
    from weightlease.source.hub_errors import translate

    return translate(error, what)


def _install_client(endpoint: str, commit: str, access: HubAccess) -> Any:
    """Put the bounded transport below huggingface_hub; returns it."""
    import httpx2
    from huggingface_hub import set_client_factory

    from weightlease.source.hub_http import BoundedTransport

    transport = BoundedTransport(endpoint, commit, retries=access.retries, timeout=access.timeout)
    set_client_factory(lambda: httpx2.Client(transport=transport, follow_redirects=True))
    return transport


def _restore_client() -> None:
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils._http import default_client_factory

    set_client_factory(default_client_factory)
