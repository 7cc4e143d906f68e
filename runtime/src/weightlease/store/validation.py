"""Whether an artifact is whole, exact and ours. The caller holds its shared lock."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor

from weightlease import filesystem
from weightlease.canonical import sha256_hex
from weightlease.errors import FailureCode, ManifestError, Stage, WeightLeaseError
from weightlease.identity import WeightArtifactIdentity
from weightlease.manifest import (
    INTEGRITY_MODE,
    MANIFEST_FILE,
    MAX_METADATA_BYTES,
    READY_FILE,
    SCHEMA_VERSION,
    FileEntry,
    Manifest,
    ReadyMarker,
    TensorEntry,
    contiguous_stride,
    manifest_digest,
    parse_manifest,
    parse_ready,
)
from weightlease.policy import Validation
from weightlease.safetensors_format import Header, read_header, stored_form
from weightlease.store.artifact import Checked, CheckedFile, raise_denied
from weightlease.store.containment import is_invalidated
from weightlease.store.domain import Domain

HASH_CHUNK_BYTES = 1024 * 1024


def validate(
    domain: Domain, key: str, identity: WeightArtifactIdentity | None, validation: Validation
) -> Checked:
    """Check the artifact of `key`, and that it is exactly `identity` if one is given.

    Raises:
        WeightLeaseError: artifact_denied, manifest_corrupt, manifest_incompatible or
            checksum_mismatch (ManifestError and SafetensorsFormatError included).
        OSError: something is missing, has the wrong kind, or cannot be read.

    """
    directory = filesystem.open_directory(domain.paths.artifact(key))
    try:
        info = os.fstat(directory)
        if is_invalidated(info):
            raise_denied(key)
        if domain.trusted and (info.st_uid != os.geteuid() or info.st_mode & 0o222):
            raise ManifestError(f"artifact directory {key} is not ours alone and read-only")
        ready, manifest, data = _read_metadata(domain, directory)
        _require_entries(directory, manifest)
        _require_exact(manifest, key, identity)
        payloads = _check_payloads(domain, directory, manifest)
        assets = _check_assets(domain, key, manifest)
    finally:
        os.close(directory)
    checked = Checked(manifest, data, ready, payloads, assets)
    if validation is Validation.FULL_CHECKSUM:
        _check_content(checked)
    return checked


def _read_metadata(domain: Domain, directory: int) -> tuple[ReadyMarker, Manifest, bytes]:
    def read(name: str) -> bytes:
        return filesystem.read_bounded(
            name, MAX_METADATA_BYTES, dir_fd=directory, trusted=domain.trusted
        )

    ready = parse_ready(read(READY_FILE))
    data = read(MANIFEST_FILE)
    manifest = parse_manifest(data)
    if (
        ready.schema_version != SCHEMA_VERSION
        or manifest.schema_version != SCHEMA_VERSION
        or ready.integrity_mode != INTEGRITY_MODE
    ):
        raise _incompatible("its schema version or integrity mode is not known here")
    # What our own writer and the peer's write is canonical already, so one hash decides.
    if sha256_hex(data) != ready.manifest_sha256 and manifest_digest(data) != ready.manifest_sha256:
        raise _mismatch(f"{MANIFEST_FILE} is not the one that {READY_FILE} binds")
    if ready.artifact_content_sha256 != manifest.artifact_content_sha256:
        raise _mismatch(f"the content digests of {MANIFEST_FILE} and {READY_FILE} differ")
    return ready, manifest, data


def _require_entries(directory: int, manifest: Manifest) -> None:
    found = set(os.listdir(directory))
    declared = {READY_FILE, MANIFEST_FILE, *(entry.file_name for entry in manifest.files)}
    if found != declared:
        missing, foreign = sorted(declared - found), sorted(found - declared)
        raise ManifestError(
            f"artifact directory differs from its manifest: missing {missing[:5]}, "
            f"unexpected {foreign[:5]}"
        )


def _require_exact(manifest: Manifest, key: str, identity: WeightArtifactIdentity | None) -> None:
    # parse_manifest has checked that artifact_key is the key of the manifest's identity, and equal
    # keys mean equal canonical bytes.
    if manifest.artifact_key != key or (identity is not None and identity.key != key):
        raise _incompatible("it is another identity than the one asked for")
    producer = manifest.identity.producer
    if (
        manifest.producer_schema != producer.manifest_schema
        or manifest.restorer_schema != producer.restorer_schema
    ):
        raise _incompatible("its producer or restorer schema is not its identity's")


# ---- files ----


def _check_payloads(domain: Domain, directory: int, manifest: Manifest) -> tuple[CheckedFile, ...]:
    tensors: dict[str, list[TensorEntry]] = {entry.file_name: [] for entry in manifest.files}
    for tensor in manifest.tensors:
        tensors[tensor.file_name].append(tensor)
    checked = []
    for entry in manifest.files:
        fd = filesystem.open_file(entry.file_name, directory)
        try:
            info = _check_file(domain, fd, entry.file_name, entry.size)
            _require_header(entry, tensors[entry.file_name], read_header(fd, entry.size))
        finally:
            os.close(fd)
        path = domain.paths.payload(manifest.artifact_key, entry.file_name)
        checked.append(CheckedFile(path, info))
    return tuple(checked)


def _check_assets(domain: Domain, key: str, manifest: Manifest) -> tuple[CheckedFile, ...]:
    checked = []
    for asset in manifest.assets:
        path = domain.paths.asset(key, asset.sha256)
        fd = filesystem.open_file(path)
        try:
            info = _check_file(domain, fd, asset.path, asset.size)
        finally:
            os.close(fd)
        checked.append(CheckedFile(path, info))
    return tuple(checked)


def _check_file(domain: Domain, fd: int, name: str, size: int) -> os.stat_result:
    info = os.fstat(fd)
    filesystem.require_published(info, name, trusted=domain.trusted)
    if info.st_size != size:
        raise _mismatch(f"{name!r} has {info.st_size} bytes, its manifest says {size}")
    return info


def _require_header(file: FileEntry, tensors: list[TensorEntry], header: Header) -> None:
    stored = {tensor.name: tensor for tensor in header.tensors}
    # dtype, shape, stride and size in a manifest follow from dtype and shape in a header
    known: dict[tuple[str, tuple[int, ...]], tuple[str, tuple[int, ...], tuple[int, ...], int]] = {}
    if len(stored) != len(tensors):
        raise ManifestError(
            f"{file.file_name!r} holds {len(stored)} tensors, its manifest says {len(tensors)}"
        )
    for entry in tensors:
        tensor = stored.get(entry.storage_key)
        if tensor is None:
            raise ManifestError(f"{file.file_name!r} lacks tensor {entry.storage_key[:200]!r}")
        kind = (tensor.dtype, tensor.shape)
        if kind not in known:
            form = stored_form(tensor)
            size = tensor.end - tensor.start
            known[kind] = (form.dtype, form.shape, contiguous_stride(form.shape), size)
        if (entry.dtype, entry.shape, entry.stride, entry.nbytes) != known[kind]:
            raise ManifestError(
                f"tensor {entry.name[:200]!r} in {file.file_name!r} is {tensor.dtype} "
                f"{list(tensor.shape)}, its manifest says {entry.dtype} {list(entry.shape)}"
            )


# ---- content ----


def _check_content(checked: Checked) -> None:
    manifest = checked.manifest
    wanted = {
        file.path: (entry.file_name, entry.sha256)
        for file, entry in zip(checked.payloads, manifest.files, strict=True)
    } | {
        file.path: (asset.path, asset.sha256)
        for file, asset in zip(checked.assets, manifest.assets, strict=True)
    }
    files = list(wanted)
    workers = min(os.cpu_count() or 1, len(files))
    with ThreadPoolExecutor(workers, thread_name_prefix="weightlease-verify") as pool:
        digests = list(pool.map(_hash_file, files))
    for file, digest in zip(files, digests, strict=True):
        name, expected = wanted[file]
        if digest != expected:
            raise _mismatch(f"{name!r} has sha256 {digest}, its manifest says {expected}")


def _hash_file(path: str) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(HASH_CHUNK_BYTES))
    fd = filesystem.open_file(path)
    try:
        offset = 0
        while count := os.preadv(fd, [buffer], offset):
            digest.update(buffer[:count])
            offset += count
    finally:
        os.close(fd)
    return digest.hexdigest()


def _mismatch(message: str) -> WeightLeaseError:
    return WeightLeaseError.of(Stage.VALIDATION, FailureCode.CHECKSUM_MISMATCH, message)


def _incompatible(problem: str) -> WeightLeaseError:
    return WeightLeaseError.of(
        Stage.VALIDATION,
        FailureCode.MANIFEST_INCOMPATIBLE,
        f"the artifact cannot be used: {problem}",
    )
