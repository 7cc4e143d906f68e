"""A small published artifact in a plain folder, and leases on it, without any store."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weightlease.identity import (
    Adaptation,
    ComponentIdentity,
    Layout,
    ProducerIdentity,
    Representation,
    SourceIdentity,
    WeightArtifactIdentity,
)
from weightlease.lease import LeaseProvenance, WeightLease
from weightlease.lease_manifest import LeasedManifest
from weightlease.manifest import (
    FileEntry,
    Manifest,
    TensorEntry,
    TensorKind,
    content_sha256,
    contiguous_stride,
)
from weightlease.policy import Validation

Tensor = tuple[str, tuple[int, ...], bytes]


def identity(model: str = "test/model") -> WeightArtifactIdentity:
    return WeightArtifactIdentity(
        schema_version=1,
        source=SourceIdentity(model, "revision", "fingerprint"),
        component=ComponentIdentity("model", "full"),
        representation=Representation("canonical", "source"),
        layout=Layout("source-files"),
        adaptation=Adaptation(),
        producer=ProducerIdentity("test", "1", "test-v1", "manifest-v1", "restorer-v1"),
    )


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def safetensors_bytes(tensors: Mapping[str, Tensor], *, odd: bool = False) -> bytes:
    """A safetensors file; `odd` makes its header's length odd, so that no tensor is aligned."""
    header: dict[str, object] = {"__metadata__": {"format": "pt", "dtype": "none"}}
    data = b""
    for name, (dtype, shape, body) in tensors.items():
        offsets = [len(data), len(data) + len(body)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        data += body
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8 + int(odd))
    return struct.pack("<Q", len(text)) + text + data


@dataclass
class SmallArtifact:
    """An artifact on disk. `lock` is the file whose shared flock its leases keep."""

    folder: Path
    manifest: Manifest

    @property
    def lock(self) -> Path:
        return self.folder / "artifact.lock"

    def descriptors(self) -> tuple[list[int], list[int], int]:
        """Payload descriptors, asset descriptors, and a fresh shared lock."""
        flags = os.O_RDONLY | os.O_CLOEXEC
        payloads = [os.open(self.folder / f.file_name, flags) for f in self.manifest.files]
        assets = [os.open(self.folder / "assets" / a.path, flags) for a in self.manifest.assets]
        lock = os.open(self.lock, flags)
        fcntl.flock(lock, fcntl.LOCK_SH)
        return payloads, assets, lock

    def provenance(self) -> LeaseProvenance:
        return LeaseProvenance(
            key=self.manifest.artifact_key,
            artifact_content_sha256=self.manifest.artifact_content_sha256,
            manifest_sha256=sha256(self.manifest.canonical_bytes),
            domain_uuid="domain",
            publication_id="publication",
            storage_class="disk",
            validation=Validation.FULL_CHECKSUM,
            resolution_source="local_store",
        )

    def lease(self, *, lazily: bool = False) -> WeightLease:
        payloads, assets, lock = self.descriptors()
        data = self.manifest.canonical_bytes
        manifest = LeasedManifest.parse(data) if lazily else self.manifest
        return WeightLease(manifest, payloads, assets, lock, self.provenance())

    def is_leased(self) -> bool:
        with open(self.lock) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


def make_artifact(
    folder: Path,
    files: Mapping[str, Mapping[str, Tensor]],
    assets: dict[str, bytes] | None = None,
    *,
    odd: bool = False,
) -> SmallArtifact:
    """Write payload `files` (name to tensors) and `assets` (path to bytes) below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    entries, payloads, asset_entries = [], [], []
    for file_name, tensors in sorted(files.items()):
        data = safetensors_bytes(tensors, odd=odd)
        (folder / file_name).write_bytes(data)
        payloads.append(FileEntry(file_name, len(data), sha256(data)))
        for name, (dtype, shape, body) in tensors.items():
            entries.append(
                TensorEntry(
                    name=name,
                    kind=TensorKind.PARAMETER,
                    role="weight",
                    file_name=file_name,
                    storage_key=name,
                    shape=shape,
                    dtype=dtype,
                    stride=contiguous_stride(shape),
                    nbytes=len(body),
                    sha256=sha256(body),
                )
            )
    for path, body in sorted((assets or {}).items()):
        target = folder / "assets" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(body)
        asset_entries.append({"path": path, "size": len(body), "sha256": sha256(body)})
    whole = identity()
    ordered = tuple(sorted(entries, key=lambda entry: entry.name))
    manifest = Manifest(
        schema_version=1,
        artifact_key=whole.key,
        identity=whole,
        producer_schema="manifest-v1",
        restorer_schema="restorer-v1",
        tensors=ordered,
        files=tuple(payloads),
        artifact_content_sha256=content_sha256(ordered),
        format_metadata={"format": "test", "assets": asset_entries},
    )
    made = SmallArtifact(folder, manifest)
    made.lock.touch()
    return made
