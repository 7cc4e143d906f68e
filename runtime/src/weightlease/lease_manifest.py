"""A manifest as a lease reads it: files at once, the first tensors by their text, all on demand.

Decoding a manifest of many tensors costs more than everything else in an acquire. The bytes of a
published manifest were checked by the store that published them, and they are canonical JSON, whose
sorted keys put the tensors last:

    {"artifact_content_sha256": …, …, "schema_version": 1, "tensors":[{"dtype": …, "name": …}, …]}

So `parse` decodes what comes before, however many tensors follow; `find` looks for a tensor's name
in the text behind it a few times; `full` decodes and checks everything, once. Where the bytes are
not so, `parse` walks over all of them and `find` goes to `full`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from weightlease.errors import IdentityError, ManifestError
from weightlease.identity import WeightArtifactIdentity
from weightlease.manifest import (
    MANIFEST_FILE,
    AssetEntry,
    FileEntry,
    Manifest,
    TensorEntry,
    parse_assets,
    parse_manifest,
)

_TENSORS = b'"tensors":['
_ENTRY = b'{"dtype":'
# From then on decoding all of them is cheaper.
_SEARCHES = 4


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest's fields with its identity left as JSON and its tensors left alone."""

    schema_version: int
    artifact_key: str
    identity: msgspec.Raw
    producer_schema: str
    restorer_schema: str
    tensors: msgspec.Raw
    files: tuple[FileEntry, ...]
    artifact_content_sha256: str
    format_metadata: dict[str, Any] = {}


_head_decoder = msgspec.json.Decoder(_Head, strict=True)
_identity_decoder = msgspec.json.Decoder(WeightArtifactIdentity, strict=True)
_entry_decoder = msgspec.json.Decoder(TensorEntry, strict=True)


class LeasedManifest:
    """One manifest, decoded as far as somebody asked; not thread-safe, its lease guards it."""

    def __init__(self, manifest: _Head | Manifest, tensors_at: int = 0, data: bytes = b"") -> None:
        self._decoded = manifest
        self._data = data
        self._tensors_at = tensors_at
        self._searches = 0
        self._identity: WeightArtifactIdentity | None = None
        self._assets: tuple[AssetEntry, ...] | None = None
        self._by_name: dict[str, TensorEntry] | None = None
        self.artifact_key = manifest.artifact_key
        self.artifact_content_sha256 = manifest.artifact_content_sha256
        self.files = manifest.files

    @classmethod
    def parse(cls, data: bytes) -> LeasedManifest:
        """Find the files, however many tensors there are.

        Raises:
            ManifestError: bytes that are not one manifest, as far as they were looked at.

        """
        return cls(*_head(data), data)

    @property
    def identity(self) -> WeightArtifactIdentity:
        """What the artifact says it is.

        Raises:
            ManifestError: the identity is malformed.

        """
        if isinstance(self._decoded, Manifest):
            return self._decoded.identity
        if self._identity is None:
            with _decoding():
                self._identity = _identity_decoder.decode(self._decoded.identity)
        return self._identity

    @property
    def assets(self) -> tuple[AssetEntry, ...]:
        """The assets, checked.

        Raises:
            ManifestError: they are not a sorted list of safe, unique paths.

        """
        if self._assets is None:
            self._assets = parse_assets(self._decoded.format_metadata)
        return self._assets

    def find(self, name: str) -> TensorEntry:
        """One tensor's entry.

        Raises:
            KeyError: the artifact has no tensor of that name.
            ManifestError: the tensor list is malformed.

        """
        if self._tensors_at and self._searches < _SEARCHES:
            self._searches += 1
            found = _search(self._data, self._tensors_at, name)
            if found is not None:
                return found
        return self.by_name()[name]

    def by_name(self) -> dict[str, TensorEntry]:
        """Every entry by its name, in the manifest's order."""
        if self._by_name is None:
            self._by_name = {entry.name: entry for entry in self.full().tensors}
        return self._by_name

    def full(self) -> Manifest:
        """The whole manifest, checked.

        Raises:
            ManifestError: what breaks the schema.

        """
        if isinstance(self._decoded, _Head):
            self._decoded = parse_manifest(self._data)
            self._data, self._tensors_at = b"", 0
        return self._decoded


def _head(data: bytes) -> tuple[_Head, int]:
    """The head, and where the tensors begin; 0 where they are not known to be last."""
    end = data.find(_TENSORS)
    # Of the fields only `format_metadata` may be absent, and its end is another.
    if end > 0 and data.endswith(b"}]}"):
        try:
            # Nothing but a top-level list is closed by this.
            return _head_decoder.decode(data[:end] + _TENSORS + b"]}"), end
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
    with _decoding():
        return _head_decoder.decode(data), 0


def _search(data: bytes, start: int, name: str) -> TensorEntry | None:
    """The entry of `name` in canonical JSON, or None: then only decoding all of it tells.

    A quotation mark inside a text has a backslash before it, so `"name":"` begins a member. What is
    cut out decodes as one whole entry of that very name, or does not count.
    """
    try:
        quoted = msgspec.json.encode(name)
    except (UnicodeEncodeError, TypeError):
        return None  # no manifest holds such a name
    found = data.find(b'"name":' + quoted + b",", start)
    begin = data.rfind(_ENTRY, start, found) if found > 0 else -1
    end = data.find(b"}", found)
    if begin < 0 or end < 0:
        return None
    try:
        entry = _entry_decoder.decode(data[begin : end + 1])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return entry if entry.name == name else None


@contextmanager
def _decoding() -> Iterator[None]:
    try:
        yield
    except (msgspec.MsgspecError, IdentityError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestError(f"{MANIFEST_FILE} is malformed: {error}") from error
