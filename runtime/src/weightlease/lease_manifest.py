"""A manifest as a lease reads it: files at once, tensors one by one, the whole on demand.

Decoding a manifest of many tensors costs more than everything else in an acquire. The bytes of a
published manifest were checked by the store that published them; here one pass over them finds
the files and where each tensor's entry lies, `find` decodes the handful of entries that a binary
search over the sorted tensors touches, and only `full` decodes and checks everything, once.
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
    validate_manifest,
)


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest's fields with its identity and its tensors left as JSON."""

    schema_version: int
    artifact_key: str
    identity: msgspec.Raw
    producer_schema: str
    restorer_schema: str
    tensors: list[msgspec.Raw]
    files: tuple[FileEntry, ...]
    artifact_content_sha256: str
    format_metadata: dict[str, Any] = {}


_head_decoder = msgspec.json.Decoder(_Head, strict=True)
_identity_decoder = msgspec.json.Decoder(WeightArtifactIdentity, strict=True)
_entry_decoder = msgspec.json.Decoder(TensorEntry, strict=True)


class LeasedManifest:
    """One manifest, decoded as far as somebody asked; not thread-safe, its lease guards it."""

    def __init__(self, manifest: _Head | Manifest) -> None:
        self._decoded = manifest
        self._identity: WeightArtifactIdentity | None = None
        self._assets: tuple[AssetEntry, ...] | None = None
        self._by_name: dict[str, TensorEntry] | None = None
        self.artifact_key = manifest.artifact_key
        self.artifact_content_sha256 = manifest.artifact_content_sha256
        self.files = manifest.files

    @classmethod
    def parse(cls, data: bytes) -> LeasedManifest:
        """Find files and entries.

        Raises:
            ManifestError: bytes that are not one manifest.

        """
        with _decoding():
            return cls(_head_decoder.decode(data))

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
        if isinstance(self._decoded, _Head):
            found = _search(self._decoded.tensors, name)
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
            self._decoded = _whole(self._decoded, self.identity)
        return self._decoded


def _whole(head: _Head, identity: WeightArtifactIdentity) -> Manifest:
    with _decoding():
        tensors = tuple(map(_entry_decoder.decode, head.tensors))
    fields = {name: getattr(head, name) for name in Manifest.__struct_fields__}
    manifest = Manifest(**(fields | {"identity": identity, "tensors": tensors}))
    validate_manifest(manifest)
    return manifest


def _search(entries: list[msgspec.Raw], name: str) -> TensorEntry | None:
    low, high = 0, len(entries)
    with _decoding():
        while low < high:
            middle = (low + high) // 2
            entry = _entry_decoder.decode(entries[middle])
            if entry.name == name:
                return entry
            low, high = (middle + 1, high) if entry.name < name else (low, middle)
    return None


@contextmanager
def _decoding() -> Iterator[None]:
    try:
        yield
    except (msgspec.MsgspecError, IdentityError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestError(f"{MANIFEST_FILE} is malformed: {error}") from error
