"""A publication in the making: the writer that a producer fills, then finalize or abort.

It holds the key's build lock from `begin` to its end, so nobody else builds, sweeps its staging or
cleans this key up. One thread at a time may drive it, not always the same one.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress

from weightlease import filesystem
from weightlease.errors import FailureCode, Stage, WeightLeaseError, production_failure
from weightlease.identity import WeightArtifactIdentity
from weightlease.locks import Deadline, HeldLocks
from weightlease.manifest import (
    PAYLOAD_SUFFIX,
    AssetEntry,
    require_asset_path,
    require_payload_name,
)
from weightlease.policy import WaitPolicy
from weightlease.store import manifest_builder
from weightlease.store.artifact import OpenArtifact
from weightlease.store.capacity import require_artifact_size
from weightlease.store.digests import TensorDigests
from weightlease.store.domain import Domain
from weightlease.store.failpoints import Point, reach
from weightlease.store.layout import STAGING_MODE
from weightlease.store.manifest_builder import StagedPayload
from weightlease.store.protocol import ProductionMetadata, TensorSpec
from weightlease.store.publish import Staged, publish
from weightlease.store.staged_file import SMALL_FILE_BYTES, StagedFile
from weightlease.store.tensor_file import TensorFile, tensor_file


class Publication:
    """An `ArtifactWriter` whose artifact becomes visible, whole, by `finalize` alone."""

    def __init__(
        self,
        domain: Domain,
        identity: WeightArtifactIdentity,
        total_bytes: int,
        build_locks: HeldLocks,
        reopen: Callable[[], OpenArtifact],
        wait: WaitPolicy,
    ) -> None:
        self._domain = domain
        self._identity = identity
        self._total_bytes = total_bytes
        self._build_locks = build_locks
        self._reopen = reopen
        self._wait = wait
        self._key = identity.key
        self._payloads: dict[str, StagedPayload] = {}
        self._assets: dict[str, AssetEntry] = {}
        self._declared_bytes = 0
        self._open_file: StagedFile | None = None
        # Fresh memory costs the kernel more than a file's copy; given back when all is staged.
        self._buffers: list[bytearray] = []
        self._syncs: list[Future[None]] = []
        self._syncer: ThreadPoolExecutor | None = None
        self._ended = False
        self._staging = domain.paths.new_staging(self._key)
        self._asset_staging = f"{self._staging}.assets"
        reach(Point.BEFORE_STAGING)
        os.mkdir(self._staging, STAGING_MODE)

    @property
    def key(self) -> str:
        return self._key

    @property
    def identity(self) -> WeightArtifactIdentity:
        return self._identity

    @property
    def total_bytes(self) -> int:
        """The upper bound that was declared, in bytes."""
        return self._total_bytes

    @property
    def bytes_written(self) -> int:
        """Payload and asset bytes taken so far."""
        partial = self._open_file.received if self._open_file else 0
        payloads = sum(payload.size for payload in self._payloads.values())
        return payloads + sum(asset.size for asset in self._assets.values()) + partial

    # ---- ArtifactWriter ----

    @contextmanager
    def payload(self, name: str, size: int, sha256: str = "") -> Iterator[StagedFile]:
        """A verbatim safetensors file; see `ArtifactWriter.payload`.

        Raises:
            WeightLeaseError: producer_failed for a broken declaration or too few or too many
                bytes, manifest_corrupt for a header that lies, checksum_mismatch, enospc.

        """
        require_payload_name(name)
        if not name.endswith(PAYLOAD_SUFFIX):
            raise production_failure(f"payload {name!r} must end in {PAYLOAD_SUFFIX}")
        if name in self._payloads:
            raise production_failure(f"payload {name!r} is declared twice")
        with self._stage(f"{self._staging}/{name}", name, size, sha256, tensors=True) as file:
            yield file
            digest = self._complete(file, sha256)
            self._payloads[name] = manifest_builder.staged_payload(file, digest)
        reach(Point.AFTER_PAYLOAD)

    @contextmanager
    def tensors(self, name: str, specs: tuple[TensorSpec, ...]) -> Iterator[TensorFile]:
        """A safetensors file laid out from `specs`; see `ArtifactWriter.tensors`."""
        with tensor_file(name, specs, self.payload) as file:
            yield file

    @contextmanager
    def asset(self, path: str, size: int, sha256: str = "") -> Iterator[StagedFile]:
        """A file without tensors; see `ArtifactWriter.asset`. Equal contents are stored once."""
        require_asset_path(path)
        if path in self._assets:
            raise production_failure(f"asset {path!r} is declared twice")
        self._require_idle()
        with filesystem.storage_errors(f"cannot stage {path!r}"):
            if not filesystem.exists(self._asset_staging):
                os.mkdir(self._asset_staging, STAGING_MODE)
        temporary = f"{self._asset_staging}/{uuid.uuid4().hex}.part"
        with self._stage(temporary, path, size, sha256, tensors=False) as file:
            yield file
            digest = self._complete(file, sha256)
            with filesystem.storage_errors(f"cannot stage {path!r}"):
                self._keep_asset(temporary, digest)
            self._assets[path] = AssetEntry(path, size, digest)

    # ---- the end ----

    def finalize(
        self, metadata: ProductionMetadata, *, expected_manifest_sha256: str = ""
    ) -> OpenArtifact:
        """Publish what was written; the publication is over, whatever the outcome.

        Raises:
            WeightLeaseError: content_mismatch when the manifest is not the expected one,
                identity_collision, producer_failed, publication_failed, enospc,
                domain_unavailable. Unless `details.outcome_uncertain` says so, nothing is visible.

        """
        self._require_idle()
        self._buffers.clear()
        try:
            with filesystem.storage_errors(f"cannot store artifact {self._key}"):
                self._wait_for_syncs()
            built = manifest_builder.build(
                self._identity, metadata, self._payloads.values(), self._assets.values()
            )
            manifest_builder.require_expected(built, expected_manifest_sha256)
            require_artifact_size(self._domain, self.bytes_written + len(built.data))
            staged = Staged(built, self._staging, self._asset_staging if self._assets else "")
            deadline = Deadline(self._wait.coordination_timeout_seconds)
            with filesystem.storage_errors(f"cannot publish artifact {self._key}"):
                publish(self._domain, staged, deadline)
            return self._reopen()
        finally:
            self.abort()

    def abort(self) -> None:
        """Remove what is staged and let others build; does nothing once the publication is over."""
        if self._ended:
            return
        self._ended = True
        if self._open_file is not None:
            self._open_file.discard()
        self._buffers.clear()
        with suppress(Exception):
            self._wait_for_syncs()
        for path in (self._staging, self._asset_staging):
            # What cannot be removed now is swept by the key's next builder.
            with suppress(OSError):
                filesystem.remove_tree(path)
        self._build_locks.close()

    # ---- files ----

    @contextmanager
    def _stage(
        self, path: str, name: str, size: int, sha256: str, *, tensors: bool
    ) -> Iterator[StagedFile]:
        self._require_idle()
        self._admit(name, size, sha256)
        with filesystem.storage_errors(f"cannot stage {name!r}"):
            digests = TensorDigests(size) if tensors else None
            file = StagedFile(path, name, size, digests, self._buffers)
        self._open_file = file
        try:
            yield file
        except BaseException:
            file.discard()
            self._declared_bytes -= size
            raise
        finally:
            self._open_file = None

    def _admit(self, name: str, size: int, sha256: str) -> None:
        if size < 0:
            raise production_failure(f"{name!r} is declared with {size} bytes")
        if sha256 and not manifest_builder.is_sha256(sha256):
            raise production_failure(f"{name!r}: {sha256[:80]!r} is not a lowercase sha256")
        if self._declared_bytes + size > self._total_bytes:
            raise production_failure(
                f"{name!r} would bring the artifact to {self._declared_bytes + size} bytes, "
                f"more than the {self._total_bytes} declared at its beginning"
            )
        self._declared_bytes += size

    def _complete(self, file: StagedFile, sha256: str) -> str:
        digest = file.finish()
        if sha256 and digest != sha256:
            raise WeightLeaseError.of(
                Stage.VALIDATION,
                FailureCode.CHECKSUM_MISMATCH,
                f"{file.name!r} has sha256 {digest}, its source says {sha256}",
                expected=sha256,
                actual=digest,
            )
        if file.size <= SMALL_FILE_BYTES:
            with filesystem.storage_errors(f"cannot store {file.name!r}"):
                file.sync_and_close()
        else:
            # The next file is written while this one reaches the disk.
            self._syncer = self._syncer or ThreadPoolExecutor(1, "weightlease-sync")
            self._syncs.append(self._syncer.submit(file.sync_and_close))
        return digest

    def _keep_asset(self, temporary: str, digest: str) -> None:
        final = f"{self._asset_staging}/{digest}"
        if filesystem.exists(final):
            os.unlink(temporary)
        else:
            os.rename(temporary, final)

    def _wait_for_syncs(self) -> None:
        syncs, self._syncs = self._syncs, []
        if self._syncer is not None:
            self._syncer.shutdown(wait=True)
            self._syncer = None
        for sync in syncs:
            sync.result()

    def _require_idle(self) -> None:
        if self._ended:
            raise production_failure("the publication is over")
        if self._open_file is not None:
            raise production_failure(f"{self._open_file.name!r} is still being written")
