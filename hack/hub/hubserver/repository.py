"""A folder as a Hub repository: files with git and LFS digests, and a commit made from them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

# The Hub keeps these, and anything large, in LFS; the rest are git blobs.
LFS_SUFFIXES = (".safetensors", ".bin", ".onnx", ".h5", ".ot", ".gguf")
LFS_BYTES = 10 * 1024 * 1024
CHUNK = 1024 * 1024


@dataclass(frozen=True)
class HubFile:
    """One file; `sha256` is empty for a git blob, `oid` is its git digest (of the LFS pointer)."""

    path: str
    size: int
    oid: str
    sha256: str
    location: str

    @property
    def etag(self) -> str:
        """What the Hub sends as ETag: sha256 for LFS, git digest otherwise."""
        return self.sha256 or self.oid

    def tree_entry(self) -> dict[str, object]:
        """The file in a tree listing."""
        entry: dict[str, object] = {
            "type": "file",
            "oid": self.oid,
            "size": self.size,
            "path": self.path,
        }
        if self.sha256:
            pointer = len(_pointer(self.sha256, self.size))
            entry["lfs"] = {"oid": self.sha256, "size": self.size, "pointerSize": pointer}
        return entry


@dataclass(frozen=True)
class Repository:
    """One repository at one commit; an empty `token` means public, `gated` needs acceptance."""

    name: str
    commit: str
    files: dict[str, HubFile]
    token: str = ""
    gated: bool = False
    revisions: frozenset[str] = field(default_factory=frozenset)

    def has(self, revision: str) -> bool:
        """Whether `revision` names this commit."""
        return revision == self.commit or revision in self.revisions


def load_repository(
    name: str, folder: str, *, commit: str = "", token: str = "", gated: bool = False
) -> Repository:
    """Read `folder`; without `commit` (40 hex) one is made from the files, the same every time."""
    files = {file.path: file for file in sorted(_walk(folder), key=lambda file: file.path)}
    listing = "\n".join(f"{file.path}\0{file.size}\0{file.etag}" for file in files.values())
    made = hashlib.sha1(f"{name}\n{listing}".encode(), usedforsecurity=False).hexdigest()
    return Repository(name, commit or made, files, token, gated, frozenset({"main"}))


def _walk(folder: str) -> list[HubFile]:
    found = []
    for directory, _, names in os.walk(folder):
        for name in names:
            location = os.path.join(directory, name)
            path = os.path.relpath(location, folder).replace(os.sep, "/")
            if os.path.isfile(location):
                found.append(_describe(path, location))
    return found


def _describe(path: str, location: str) -> HubFile:
    size = os.path.getsize(location)
    if size >= LFS_BYTES or path.endswith(LFS_SUFFIXES):
        digest = hashlib.sha256()
        for chunk in _chunks(location):
            digest.update(chunk)
        pointer = _pointer(digest.hexdigest(), size)
        return HubFile(
            path, size, _git_digest([pointer], len(pointer)), digest.hexdigest(), location
        )
    return HubFile(path, size, _git_digest(_chunks(location), size), "", location)


def _git_digest(chunks: Iterable[bytes], size: int) -> str:
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _pointer(sha256: str, size: int) -> bytes:
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n"
    return text.encode()


def _chunks(location: str) -> Iterator[bytes]:
    with open(location, "rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk
