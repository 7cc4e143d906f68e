"""The two metadata files of a published artifact, byte-compatible with HWR v1.

    artifacts/<key>/
      <payload>.safetensors …   0444, one link, owned by the store's uid
      manifest.json             0444, at most 64 MiB, canonical JSON
      READY.json                0444, written last

    manifest.json
      schema_version, artifact_key, identity, producer_schema, restorer_schema,
      tensors: [{name, kind, role, file_name, storage_key, shape, dtype, stride, nbytes, sha256}]
      files:   [{file_name, size, sha256}]
      artifact_content_sha256, format_metadata

    READY.json
      schema_version, publication_id, manifest_sha256, artifact_content_sha256, integrity_mode

`manifest_sha256` is the digest of the canonical encoding of the parsed manifest.
`artifact_content_sha256` covers the semantic tensor fields alone, so it does not depend on how
tensors are split over files. Tensors and files are sorted and unique by name.

The snapshot producer's `format_metadata` is {"format", "assets": [{path, size, sha256}]}; assets
are the source's files without tensors.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from weightlease.canonical import canonical_json, canonical_plain, sha256_hex
from weightlease.errors import IdentityError, ManifestError
from weightlease.identity import WeightArtifactIdentity, is_key

MANIFEST_FILE = "manifest.json"
READY_FILE = "READY.json"
PAYLOAD_SUFFIX = ".safetensors"
SCHEMA_VERSION = 1
INTEGRITY_MODE = "full_checksum"
MAX_METADATA_BYTES = 64 * 1024 * 1024
# The longest name that Linux file systems hold, and a path that fits below any folder.
MAX_NAME_BYTES = 255
MAX_ASSET_PATH_BYTES = 1024

_SHA256 = re.compile(r"[0-9a-f]{64}")
_HEX_DIGITS = b"0123456789abcdef"


class TensorKind(StrEnum):
    """What a tensor is to its module."""

    PARAMETER = "parameter"
    BUFFER = "buffer"


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One tensor: `shape` and `stride` in elements, `nbytes` as stored, sha256 of those bytes."""

    name: str
    kind: TensorKind
    role: str
    file_name: str
    storage_key: str
    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...]
    nbytes: int
    sha256: str


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One payload file; `size` in bytes, header included."""

    file_name: str
    size: int
    sha256: str


class AssetEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file without tensors; `path` is relative to the component, with `/`."""

    path: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An artifact's complete, immutable description."""

    schema_version: int
    artifact_key: str
    identity: WeightArtifactIdentity
    producer_schema: str
    restorer_schema: str
    tensors: tuple[TensorEntry, ...]
    files: tuple[FileEntry, ...]
    artifact_content_sha256: str
    format_metadata: dict[str, Any] = {}

    @property
    def canonical_bytes(self) -> bytes:
        """What manifest.json holds."""
        return canonical_json(msgspec.to_builtins(self))

    @property
    def payload_bytes(self) -> int:
        """Size of all payload files together, in bytes."""
        return sum(entry.size for entry in self.files)

    @property
    def assets(self) -> tuple[AssetEntry, ...]:
        """The assets bound into this artifact, sorted by path.

        Raises:
            ManifestError: `format_metadata.assets` is not a sorted list of safe, unique paths.

        """
        return parse_assets(self.format_metadata)


class ReadyMarker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """READY.json: the artifact is whole, and these are the digests of what it holds."""

    schema_version: int
    publication_id: str
    manifest_sha256: str
    artifact_content_sha256: str
    integrity_mode: str

    @property
    def canonical_bytes(self) -> bytes:
        """What READY.json holds."""
        return canonical_json(msgspec.to_builtins(self))


def content_sha256(tensors: tuple[TensorEntry, ...]) -> str:
    """Digest of the tensors' semantic fields, independent of files and order of storage.

    HWR hashes the canonical encodings of the sorted entries one after the other.
    """
    digest = hashlib.sha256()
    for entry in tensors:
        digest.update(
            canonical_plain(
                {
                    "name": entry.name,
                    "kind": str(entry.kind),
                    "role": entry.role,
                    "shape": entry.shape,
                    "dtype": entry.dtype,
                    "stride": entry.stride,
                    "nbytes": entry.nbytes,
                    "sha256": entry.sha256,
                }
            )
        )
    return digest.hexdigest()


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides of `shape`, in elements."""
    strides: list[int] = []
    step = 1
    for dimension in reversed(shape):
        strides.append(step)
        step *= max(dimension, 1)
    return tuple(reversed(strides))


_manifest_decoder = msgspec.json.Decoder(Manifest, strict=True)
_ready_decoder = msgspec.json.Decoder(ReadyMarker, strict=True)


def parse_manifest(data: bytes) -> Manifest:
    """Decode and check manifest.json.

    Raises:
        ManifestError: bytes that are not exactly one valid manifest.

    """
    try:
        manifest = _manifest_decoder.decode(data)
    except (msgspec.MsgspecError, IdentityError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestError(f"{MANIFEST_FILE} is malformed: {error}") from error
    validate_manifest(manifest)
    return manifest


def parse_ready(data: bytes) -> ReadyMarker:
    """Decode and check READY.json.

    Raises:
        ManifestError: bytes that are not exactly one valid marker.

    """
    try:
        ready = _ready_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestError(f"{READY_FILE} is malformed: {error}") from error
    if ready.schema_version < 1 or not ready.publication_id or not ready.integrity_mode:
        raise ManifestError(f"{READY_FILE} has an empty or non-positive field")
    _require_sha256("manifest_sha256", ready.manifest_sha256)
    _require_sha256("artifact_content_sha256", ready.artifact_content_sha256)
    return ready


def manifest_digest(data: bytes) -> str:
    """Digest that READY binds: of the canonical re-encoding, so white space does not matter."""
    try:
        return sha256_hex(canonical_json(json.loads(data)))
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{MANIFEST_FILE} is malformed: {error}") from error


def validate_manifest(manifest: Manifest) -> None:
    """Check what the types alone do not say.

    Raises:
        ManifestError: the field, its value and what was expected.

    """
    if manifest.schema_version < 1:
        raise ManifestError(f"schema_version {manifest.schema_version} must be at least 1")
    if not is_key(manifest.artifact_key) or manifest.artifact_key != manifest.identity.key:
        raise ManifestError(f"artifact_key {manifest.artifact_key!r} is not the identity's key")
    if not manifest.producer_schema or not manifest.restorer_schema:
        raise ManifestError("producer_schema and restorer_schema must not be empty")
    if not manifest.tensors or not manifest.files:
        raise ManifestError("an artifact has at least one tensor and one file")
    _require_sha256("artifact_content_sha256", manifest.artifact_content_sha256)
    for file in manifest.files:
        require_payload_name(file.file_name)
        _require_sha256(f"file {file.file_name!r}", file.sha256)
        if file.size < 0:
            raise ManifestError(f"file {file.file_name!r} has a negative size")
    _validate_tensors(manifest.tensors)
    _require_sorted_unique("tensors", [entry.name for entry in manifest.tensors])
    _require_sorted_unique("files", [entry.file_name for entry in manifest.files])
    declared = {entry.file_name for entry in manifest.files}
    bindings = {(entry.file_name, entry.storage_key) for entry in manifest.tensors}
    if len(bindings) != len(manifest.tensors):
        raise ManifestError("two tensors name one storage key of one file")
    foreign = {name for name, _ in bindings} - declared
    if foreign:
        raise ManifestError(f"tensors refer to undeclared files: {', '.join(sorted(foreign))}")


def parse_assets(format_metadata: dict[str, Any]) -> tuple[AssetEntry, ...]:
    """The assets that `format_metadata` of a manifest lists; see `Manifest.assets`."""
    try:
        found = msgspec.convert(
            format_metadata.get("assets", []), tuple[AssetEntry, ...], strict=True
        )
    except msgspec.ValidationError as error:
        raise ManifestError(f"format_metadata.assets is malformed: {error}") from error
    for asset in found:
        require_asset_path(asset.path)
        _require_sha256(f"asset {asset.path!r}", asset.sha256)
        if asset.size < 0:
            raise ManifestError(f"asset {asset.path!r} has a negative size")
    _require_sorted_unique("assets", [asset.path for asset in found])
    return found


def require_payload_name(name: str) -> None:
    """A payload name is one plain basename that a file system holds; else it could leave its root.

    Raises:
        ManifestError: the name and why it is refused.

    """
    if not name or "/" in name or name in {".", ".."} or "\0" in name:
        raise ManifestError(f"payload file name {name[:300]!r} is not one plain basename")
    _require_file_name("payload file name", name)


def require_asset_path(path: str) -> None:
    """An asset path is relative, normal, has no `..` and fits a file system.

    Raises:
        ManifestError: the path and why it is refused.

    """
    parts = path.split("/")
    if not path or "\0" in path or "\\" in path or any(part in {"", ".", ".."} for part in parts):
        raise ManifestError(f"asset path {path[:300]!r} is not a plain relative path")
    for part in parts:
        _require_file_name("a part of an asset path", part)
    size = len(path) if path.isascii() else len(path.encode())
    if size > MAX_ASSET_PATH_BYTES:
        raise ManifestError(
            f"asset path {path[:300]!r} has {size} bytes, more than {MAX_ASSET_PATH_BYTES}"
        )


def require_one_tree(paths: Sequence[str]) -> None:
    """Payloads and assets lie in one folder for their readers: no name twice, none below a file.

    Raises:
        ManifestError: the path that has no place.

    """
    files = set(paths)
    if len(files) != len(paths):
        raise ManifestError("an asset has the name of a payload file")
    for path in paths:
        parts = path.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            if "/".join(parts[:depth]) in files:
                raise ManifestError(f"{path[:300]!r} lies below a name that is a file")


def _require_file_name(what: str, name: str) -> None:
    if name.isascii() and len(name) <= MAX_NAME_BYTES:
        return
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise ManifestError(f"{what}: {name[:300]!r} is not valid unicode") from error
    if size > MAX_NAME_BYTES:
        raise ManifestError(f"{what}: {name[:300]!r} has {size} bytes, more than {MAX_NAME_BYTES}")


def _validate_tensors(tensors: tuple[TensorEntry, ...]) -> None:
    # Most artifacts have thousands of tensors of few shapes, and a lookup waits for this: names of
    # files are left to the check against the declared ones, digests are looked at all in one go.
    layouts = {(entry.shape, entry.stride) for entry in tensors}
    plain = all(
        len(shape) == len(stride) and min(shape + stride, default=0) >= 0
        for shape, stride in layouts
    )
    for entry in tensors:
        if not (
            plain
            and entry.nbytes >= 0
            and entry.name
            and entry.role
            and entry.storage_key
            and entry.dtype
        ):
            _validate_tensor(entry)
    digests = [entry.sha256 for entry in tensors]
    hexadecimal = not "".join(digests).encode("utf-8", "replace").translate(None, _HEX_DIGITS)
    if not hexadecimal or any(len(digest) != 64 for digest in digests):
        for entry in tensors:
            _require_sha256(f"tensor {entry.name!r}", entry.sha256)


def _validate_tensor(tensor: TensorEntry) -> None:
    if not tensor.name or not tensor.role or not tensor.storage_key or not tensor.dtype:
        raise ManifestError(f"tensor {tensor.name!r} has an empty field")
    if tensor.nbytes < 0 or any(size < 0 for size in tensor.shape):
        raise ManifestError(f"tensor {tensor.name!r} has a negative size")
    if len(tensor.stride) != len(tensor.shape) or any(step < 0 for step in tensor.stride):
        raise ManifestError(f"tensor {tensor.name!r} has strides that do not fit its shape")


def _require_sha256(name: str, value: str) -> None:
    if _SHA256.fullmatch(value) is None:
        raise ManifestError(f"{name}: {value!r} is not a lowercase sha256")


def _require_sorted_unique(name: str, values: list[str]) -> None:
    if values != sorted(set(values)):
        raise ManifestError(f"{name} are not sorted and unique")
