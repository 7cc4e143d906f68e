"""From staged files to a manifest."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from weightlease.canonical import sha256_hex
from weightlease.errors import (
    FailureCode,
    SafetensorsFormatError,
    Stage,
    WeightLeaseError,
    production_failure,
)
from weightlease.identity import WeightArtifactIdentity
from weightlease.manifest import (
    MAX_METADATA_BYTES,
    SCHEMA_VERSION,
    AssetEntry,
    FileEntry,
    Manifest,
    TensorEntry,
    TensorKind,
    content_sha256,
    contiguous_stride,
    require_one_tree,
    validate_manifest,
)
from weightlease.safetensors_format import Header, stored_form
from weightlease.store.protocol import ProductionMetadata
from weightlease.store.staged_file import StagedFile

ASSETS_FIELD = "assets"
# A file does not say what a tensor is to its module. A producer that knows says it here, as
# {name: [kind, role]}; it moves from there into the tensors' entries.
SEMANTICS_FIELD = "tensor_semantics"
# What is true of any weight file.
_KIND = TensorKind.PARAMETER
_ROLE = "weight"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class StagedPayload:
    """A complete payload file in staging: its size in bytes, its digests and its header."""

    name: str
    size: int
    sha256: str
    header: Header
    tensor_sha256: dict[str, str]


@dataclass(frozen=True)
class BuiltManifest:
    """A manifest, its canonical bytes and their digest."""

    manifest: Manifest
    data: bytes
    sha256: str


def staged_payload(file: StagedFile, sha256: str) -> StagedPayload:
    """What a payload file turned out to hold.

    Raises:
        SafetensorsFormatError: the file ended inside its header.

    """
    tensors = file.tensors
    if tensors is None or tensors.header is None:
        raise SafetensorsFormatError("truncated", f"{file.name!r} ends inside its header")
    return StagedPayload(file.name, file.size, sha256, tensors.header, tensors.by_name)


def build(
    identity: WeightArtifactIdentity,
    metadata: ProductionMetadata,
    payloads: Iterable[StagedPayload],
    assets: Iterable[AssetEntry],
) -> BuiltManifest:
    """Describe an artifact.

    Raises:
        WeightLeaseError: producer_failed where the producer's output is no artifact of `identity`;
            manifest_corrupt where a name breaks the manifest's rules; artifact_too_large.

    """
    _require_schemas(identity, metadata)
    found = sorted(payloads, key=lambda payload: payload.name)
    tensors = _with_semantics(_tensor_entries(found), metadata)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        artifact_key=identity.key,
        identity=identity,
        producer_schema=metadata.producer_schema,
        restorer_schema=metadata.restorer_schema,
        tensors=tensors,
        files=tuple(FileEntry(payload.name, payload.size, payload.sha256) for payload in found),
        artifact_content_sha256=content_sha256(tensors),
        format_metadata=_format_metadata(metadata, assets),
    )
    validate_manifest(manifest)
    require_one_tree(
        [*(one.file_name for one in manifest.files), *(one.path for one in manifest.assets)]
    )
    try:
        data = manifest.canonical_bytes
    except (TypeError, ValueError, RecursionError) as error:
        raise production_failure(f"format_metadata is not deterministic JSON: {error}") from error
    if len(data) > MAX_METADATA_BYTES:
        raise WeightLeaseError.of(
            Stage.CAPACITY,
            FailureCode.ARTIFACT_TOO_LARGE,
            f"the manifest has {len(data)} bytes, more than {MAX_METADATA_BYTES}",
        )
    return BuiltManifest(manifest, data, sha256_hex(data))


def require_expected(built: BuiltManifest, expected_sha256: str) -> None:
    """Check the manifest against the one that others published.

    Raises:
        WeightLeaseError: content_mismatch.

    """
    if expected_sha256 and built.sha256 != expected_sha256:
        raise WeightLeaseError.of(
            Stage.VALIDATION,
            FailureCode.CONTENT_MISMATCH,
            f"the manifest has sha256 {built.sha256}, but {expected_sha256} was expected",
            expected=expected_sha256,
            actual=built.sha256,
        )


def is_sha256(text: str) -> bool:
    """Whether `text` has the form of a digest."""
    return _SHA256.fullmatch(text) is not None


def _require_schemas(identity: WeightArtifactIdentity, metadata: ProductionMetadata) -> None:
    wanted = (identity.producer.manifest_schema, identity.producer.restorer_schema)
    found = (metadata.producer_schema, metadata.restorer_schema)
    if wanted != found:
        raise production_failure(f"the producer's schemas are {found}, its identity says {wanted}")


def _tensor_entries(payloads: list[StagedPayload]) -> tuple[TensorEntry, ...]:
    owner: dict[str, str] = {}
    entries: list[TensorEntry] = []
    for payload in payloads:
        for tensor in payload.header.tensors:
            first = owner.setdefault(tensor.name, payload.name)
            if first != payload.name:
                raise production_failure(
                    f"tensor {tensor.name[:200]!r} is in both {first!r} and {payload.name!r}"
                )
            form = stored_form(tensor)
            entries.append(
                TensorEntry(
                    name=tensor.name,
                    kind=_KIND,
                    role=_ROLE,
                    file_name=payload.name,
                    storage_key=tensor.name,
                    shape=form.shape,
                    dtype=form.dtype,
                    stride=contiguous_stride(form.shape),
                    nbytes=tensor.end - tensor.start,
                    sha256=payload.tensor_sha256[tensor.name],
                )
            )
    if not entries:
        raise production_failure("the producer wrote no tensor")
    return tuple(sorted(entries, key=lambda entry: entry.name))


def _with_semantics(
    entries: tuple[TensorEntry, ...], metadata: ProductionMetadata
) -> tuple[TensorEntry, ...]:
    stated = metadata.format_metadata.get(SEMANTICS_FIELD)
    if stated is None:
        return entries
    try:
        known = msgspec.convert(stated, dict[str, tuple[TensorKind, str]], strict=True)
    except msgspec.ValidationError as error:
        raise production_failure(f"{SEMANTICS_FIELD} is malformed: {error}") from error
    foreign = known.keys() - {entry.name for entry in entries}
    if foreign:
        raise production_failure(
            f"{SEMANTICS_FIELD} names tensors that were not written: {sorted(foreign)[:5]}"
        )
    return tuple(
        msgspec.structs.replace(entry, kind=known[entry.name][0], role=known[entry.name][1])
        if entry.name in known
        else entry
        for entry in entries
    )


def _format_metadata(metadata: ProductionMetadata, assets: Iterable[AssetEntry]) -> dict[str, Any]:
    if ASSETS_FIELD in metadata.format_metadata:
        raise production_failure(f"format_metadata.{ASSETS_FIELD} is the store's to fill")
    found = sorted(assets, key=lambda asset: asset.path)
    stated = {
        name: value for name, value in metadata.format_metadata.items() if name != SEMANTICS_FIELD
    }
    if not found:
        return stated
    return {**stated, ASSETS_FIELD: msgspec.to_builtins(found)}
