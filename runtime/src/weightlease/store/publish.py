"""The one place where a staged artifact becomes a published one, in one order.

    each payload and asset is written, hashed, 0444 and fsynced   (store.staged_file)
    manifest.json, then READY.json, each fsynced
    staging directory sticky; it and the assets' staging fsynced
    exclusive artifact lock
    assets renamed, 0555, fsynced with their parent
    staging renamed to artifacts/<key>
    0555, which takes the sticky bit away; artifact and tmp/ fsynced
    deny marker removed
    artifacts/ fsynced                                                the commit

A crash before the rename leaves staging that no reader looks at. One after it leaves either a
sticky directory, which readers refuse, or a whole artifact.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from dataclasses import dataclass

from weightlease import filesystem
from weightlease.errors import FailureCode, ManifestError, Stage, WeightLeaseError
from weightlease.locks import Deadline, FileLock
from weightlease.manifest import (
    INTEGRITY_MODE,
    MANIFEST_FILE,
    MAX_METADATA_BYTES,
    READY_FILE,
    SCHEMA_VERSION,
    Manifest,
    ReadyMarker,
    parse_manifest,
)
from weightlease.store import containment
from weightlease.store.domain import Domain
from weightlease.store.failpoints import Point, reach
from weightlease.store.layout import PUBLISHED_MODE, SEALED_MODE, Paths, QuarantineReason
from weightlease.store.manifest_builder import BuiltManifest


@dataclass(frozen=True)
class Staged:
    """A complete artifact in staging; `assets` is empty where it has none."""

    built: BuiltManifest
    artifact: str
    assets: str


def publish(domain: Domain, staged: Staged, deadline: Deadline) -> None:
    """Make a staged artifact visible; needs the key's build lock.

    Raises:
        WeightLeaseError: identity_collision; publication_failed with `details.containment`; a
            storage failure with `details.outcome_uncertain`; active_build_timeout when readers of
            a competitor's artifact do not let go.
        OSError: something failed before anything was visible.

    """
    paths, key = domain.paths, staged.built.manifest.artifact_key
    _write_metadata(staged)
    reach(Point.BEFORE_SEAL)
    os.chmod(staged.artifact, SEALED_MODE)
    filesystem.sync_directory(staged.artifact)
    if staged.assets:
        filesystem.sync_directory(staged.assets)
    lock = FileLock.acquire(
        paths.artifact_lock(key), exclusive=True, deadline=deadline, stage=Stage.PRODUCTION
    )
    try:
        if filesystem.exists(paths.artifact(key)):
            _accept_competitor(paths, key, staged)
            return
        _publish_assets(paths, key, staged.assets)
        reach(Point.BEFORE_RENAME)
        os.rename(staged.artifact, paths.artifact(key))
        try:
            _commit(paths, key)
        except OSError as error:
            raise _take_back(paths, key, error) from error
        with suppress(OSError):
            reach(Point.AFTER_COMMIT)
    finally:
        lock.close()


def _write_metadata(staged: Staged) -> None:
    ready = ReadyMarker(
        schema_version=SCHEMA_VERSION,
        publication_id=uuid.uuid4().hex,
        manifest_sha256=staged.built.sha256,
        artifact_content_sha256=staged.built.manifest.artifact_content_sha256,
        integrity_mode=INTEGRITY_MODE,
    )
    reach(Point.BEFORE_MANIFEST)
    filesystem.write_new_file(f"{staged.artifact}/{MANIFEST_FILE}", staged.built.data)
    reach(Point.BEFORE_READY)
    filesystem.write_new_file(f"{staged.artifact}/{READY_FILE}", ready.canonical_bytes)


def _publish_assets(paths: Paths, key: str, staged: str) -> None:
    reach(Point.BEFORE_ASSETS_RENAME)
    # without an artifact, assets of this key are what a crash left here
    filesystem.remove_tree(paths.asset_tree(key))
    if not staged:
        return
    os.rename(staged, paths.asset_tree(key))
    os.chmod(paths.asset_tree(key), PUBLISHED_MODE)
    filesystem.sync_directory(paths.asset_tree(key))
    filesystem.sync_directory(paths.assets)


def _commit(paths: Paths, key: str) -> None:
    reach(Point.AFTER_RENAME)
    os.chmod(paths.artifact(key), PUBLISHED_MODE)
    filesystem.sync_directory(paths.artifact(key))
    filesystem.sync_directory(paths.staging)
    containment.remove_denial(paths, key)
    reach(Point.BEFORE_COMMIT)
    filesystem.sync_directory(paths.artifacts)


def _take_back(paths: Paths, key: str, error: OSError) -> WeightLeaseError:
    try:
        done = containment.contain_publication(paths, key)
    except OSError as uncontained:
        return WeightLeaseError(
            filesystem.storage_failure(
                uncontained,
                f"artifact {key} could be neither committed nor taken back",
                outcome_uncertain=True,
                publication_error=filesystem.error_details(error),
                containment_error=filesystem.error_details(uncontained),
            )
        )
    return WeightLeaseError.of(
        Stage.LIFECYCLE,
        FailureCode.PUBLICATION_FAILED,
        f"artifact {key} could not be committed and was taken back: {error}",
        containment=done,
    )


def _accept_competitor(paths: Paths, key: str, staged: Staged) -> None:
    """Somebody who ignores the build lock was first: equal content is as good as ours."""
    try:
        data = filesystem.read_bounded(paths.manifest(key), MAX_METADATA_BYTES, trusted=False)
    except OSError as error:
        failure = filesystem.storage_failure(
            error,
            f"cannot read what another process published as {key}",
            outcome_uncertain=True,
            competing_entry="preserved",
        )
        raise WeightLeaseError(failure) from error
    try:
        theirs = parse_manifest(data)
    except ManifestError as error:
        raise WeightLeaseError.of(
            Stage.LIFECYCLE,
            FailureCode.PUBLICATION_FAILED,
            f"another process published something else as {key}: {error}",
        ) from error
    if _semantics(theirs) != _semantics(staged.built.manifest):
        collision = paths.new_quarantine(key, QuarantineReason.IDENTITY_COLLISION)
        containment.move(staged.artifact, collision)
        raise WeightLeaseError.of(
            Stage.VALIDATION,
            FailureCode.IDENTITY_COLLISION,
            f"another process published different content under key {key}",
            quarantined=os.path.basename(collision),
        )
    containment.remove_denial(paths, key)


def _semantics(manifest: Manifest) -> tuple[object, ...]:
    return (
        manifest.identity.canonical_bytes,
        manifest.artifact_content_sha256,
        manifest.producer_schema,
        manifest.restorer_schema,
        manifest.format_metadata,
    )
