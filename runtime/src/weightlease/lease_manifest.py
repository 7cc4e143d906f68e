"""A manifest as a lease reads it: files at once, tensors one by one, the whole on demand.

Decoding a manifest of many tensors costs more than everything else in an acquire. The bytes of a
published manifest were checked by the store that published them; here the file list and identity
are decoded at once, `find` decodes the handful of entries that a binary search over the sorted
tensors touches, and only `full` decodes and checks everything, once.
"""

from __future__ import annotations

from typing import Any

import msgspec

from weightlease.errors import IdentityError, ManifestError
from weightlease.identity import WeightArtifactIdentity
from weightlease.manifest import (
    AssetEntry,
    FileEntry,
    Manifest,
    TensorEntry,
    validate_manifest,
)


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest's fields with its tensors left as JSON."""

    schema_version: int
    artifact_key: str
    identity: WeightArtifactIdentity
    producer_schema: str
    restorer_schema: str
    tensors: msgspec.Raw
    files: tuple[FileEntry, ...]
    artifact_content_sha256: str
    format_metadata: dict[str, Any] = {}


_head_decoder = msgspec.json.Decoder(_Head, strict=True)
_entries_decoder = msgspec.json.Decoder(list[msgspec.Raw], strict=True)
_entry_decoder = msgspec.json.Decoder(TensorEntry, strict=True)
_tensors_decoder = msgspec.json.Decoder(tuple[TensorEntry, ...], strict=True)
_DECODING = (msgspec.MsgspecError, IdentityError, UnicodeDecodeError, RecursionError)


class LeasedManifest:
    """One manifest, decoded as far as somebody asked; not thread-safe, its lease guards it."""

    def __init__(self, head: _Head | Manifest) -> None:
        self._head = head
        self._full = head if isinstance(head, Manifest) else None
        self._raw: list[msgspec.Raw] | None = None
        self._by_name: dict[str, TensorEntry] | None = None
        self.files = head.files

    @classmethod
    def parse(cls, data: bytes) -> LeasedManifest:
        """Decode everything but the tensors.

        Raises:
            ManifestError: bytes that are not one manifest.

        """
        try:
            return cls(_head_decoder.decode(data))
        except _DECODING as error:
            raise ManifestError(f"manifest.json is malformed: {error}") from error

    @property
    def artifact_key(self) -> str:
        """The key the manifest claims."""
        return self._head.artifact_key

    @property
    def identity(self) -> WeightArtifactIdentity:
        """What the artifact says it is."""
        return self._head.identity

    @property
    def artifact_content_sha256(self) -> str:
        """Digest of the tensors' semantic fields."""
        return self._head.artifact_content_sha256

    @property
    def assets(self) -> tuple[AssetEntry, ...]:
        """The assets, checked as `Manifest.assets` checks them."""
        return _without_tensors(self._head).assets

    def find(self, name: str) -> TensorEntry:
        """One tensor's entry.

        Raises:
            KeyError: the artifact has no tensor of that name.
            ManifestError: the tensor list is malformed.

        """
        if self._by_name is None and self._full is None:
            found = self._search(name)
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
        if self._full is None:
            head = self._head
            try:
                tensors = _tensors_decoder.decode(head.tensors)  # type: ignore[arg-type]
            except _DECODING as error:
                raise ManifestError(f"manifest.json is malformed: {error}") from error
            manifest = msgspec.structs.replace(_without_tensors(head), tensors=tensors)
            validate_manifest(manifest)
            self._full, self._raw = manifest, None
        return self._full

    def _search(self, name: str) -> TensorEntry | None:
        try:
            if self._raw is None:
                self._raw = _entries_decoder.decode(self._head.tensors)  # type: ignore[arg-type]
            low, high = 0, len(self._raw)
            while low < high:
                middle = (low + high) // 2
                entry = _entry_decoder.decode(self._raw[middle])
                if entry.name == name:
                    return entry
                low, high = (middle + 1, high) if entry.name < name else (low, middle)
        except _DECODING as error:
            raise ManifestError(f"manifest.json is malformed: {error}") from error
        return None


def _without_tensors(head: _Head | Manifest) -> Manifest:
    fields = {name: getattr(head, name) for name in Manifest.__struct_fields__ if name != "tensors"}
    return Manifest(tensors=(), **fields)
