"""An artifact that was validated and is held: its shared lock keeps it from being removed."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn, Self

from weightlease import filesystem
from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.lease import LeaseProvenance, WeightLease
from weightlease.locks import FileLock
from weightlease.manifest import Manifest, ReadyMarker
from weightlease.policy import Validation
from weightlease.store import containment
from weightlease.store.domain import Domain
from weightlease.store.layout import Paths


@dataclass(frozen=True)
class CheckedFile:
    """A file of an artifact as validation saw it; `path` is absolute."""

    path: str
    info: os.stat_result


@dataclass(frozen=True)
class Checked:
    """What validation of one artifact found, in the order of its manifest."""

    manifest: Manifest
    manifest_bytes: bytes
    ready: ReadyMarker
    payloads: tuple[CheckedFile, ...]
    assets: tuple[CheckedFile, ...]


class OpenArtifact:
    """A validated artifact under its shared lock, until `close` or `to_lease`. Not thread-safe."""

    def __init__(
        self, domain: Domain, lock: FileLock, checked: Checked, validation: Validation
    ) -> None:
        self._domain = domain
        self._lock = lock
        self._checked = checked
        self.validation = validation

    @property
    def key(self) -> str:
        return self.manifest.artifact_key

    @property
    def manifest(self) -> Manifest:
        return self._checked.manifest

    @property
    def manifest_bytes(self) -> bytes:
        """manifest.json as it is on disk."""
        return self._checked.manifest_bytes

    @property
    def manifest_sha256(self) -> str:
        """Digest of the manifest's canonical encoding, as READY.json binds it."""
        return self.ready.manifest_sha256

    @property
    def ready(self) -> ReadyMarker:
        return self._checked.ready

    @property
    def domain_uuid(self) -> str:
        return self._domain.uuid

    @property
    def size_bytes(self) -> int:
        """Payload and assets as stored, in bytes; assets of equal content count once."""
        assets = {entry.sha256: entry.size for entry in self.manifest.assets}
        return self.manifest.payload_bytes + sum(assets.values())

    def payload_path(self, name: str, root: str | None = None) -> str:
        """Path of a payload file, below another mount of the domain's root if one is given.

        Raises:
            KeyError: the artifact has no such payload.

        """
        if all(entry.file_name != name for entry in self.manifest.files):
            raise KeyError(name)
        return self._paths(root).payload(self.key, name)

    def asset_path(self, path: str, root: str | None = None) -> str:
        """Path of the file that holds the asset `path`; named by its content, not by `path`.

        Raises:
            KeyError: the artifact has no such asset.

        """
        for entry in self.manifest.assets:
            if entry.path == path:
                return self._paths(root).asset(self.key, entry.sha256)
        raise KeyError(path)

    def manifest_path(self, root: str | None = None) -> str:
        """Path of manifest.json, below another mount of the domain's root if one is given."""
        return self._paths(root).manifest(self.key)

    def require_allowed(self) -> None:
        """Check again that the artifact was not denied since it was opened.

        Raises:
            WeightLeaseError: artifact_denied.
            OSError: the file system cannot be asked.

        """
        paths = self._domain.paths
        info = os.lstat(paths.artifact(self.key))
        if containment.is_invalidated(info) or filesystem.exists(paths.denial(self.key)):
            raise_denied(self.key)

    def to_lease(self) -> WeightLease:
        """Turn this into a lease, which takes over the lock; nothing is left here.

        Raises:
            WeightLeaseError: artifact_denied, or a file is no longer the one that was validated.
            OSError: a file cannot be opened.

        """
        self.require_allowed()
        payloads: list[int] = []
        assets: list[int] = []
        try:
            payloads.extend(map(_reopen, self._checked.payloads))
            assets.extend(map(_reopen, self._checked.assets))
            provenance = self._provenance()
            lock_fd = self._lock.hand_over()
        except BaseException:
            for fd in (*payloads, *assets):
                with suppress(OSError):
                    os.close(fd)
            raise
        return WeightLease(self.manifest, payloads, assets, lock_fd, provenance)

    def close(self) -> None:
        """Give the shared lock back."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _paths(self, root: str | None) -> Paths:
        return self._domain.paths if root is None else Paths(root)

    def _provenance(self) -> LeaseProvenance:
        return LeaseProvenance(
            key=self.key,
            artifact_content_sha256=self.manifest.artifact_content_sha256,
            manifest_sha256=self.manifest_sha256,
            domain_uuid=self.domain_uuid,
            publication_id=self.ready.publication_id,
            storage_class=str(self._domain.policy.storage_class),
            validation=self.validation,
            resolution_source="local_store",
        )


def raise_denied(key: str) -> NoReturn:
    """Raise the failure of a denied artifact."""
    raise WeightLeaseError.of(
        Stage.LOOKUP,
        FailureCode.ARTIFACT_DENIED,
        f"artifact {key} is denied until it is rebuilt or cleaned up",
    )


def _reopen(file: CheckedFile) -> int:
    fd = filesystem.open_file(file.path)
    info = os.fstat(fd)
    if _fingerprint(info) != _fingerprint(file.info):
        os.close(fd)
        raise WeightLeaseError.of(
            Stage.VALIDATION,
            FailureCode.MANIFEST_CORRUPT,
            f"{os.path.basename(file.path)!r} changed between its validation and the lease",
        )
    return fd


def _fingerprint(info: os.stat_result) -> tuple[int, ...]:
    # inode numbers are used again, change times are not
    return (info.st_dev, info.st_ino, info.st_mode, info.st_size, info.st_ctime_ns)
