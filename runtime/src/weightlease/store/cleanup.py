"""Removing what nobody needs; never waits for anybody.

An artifact goes by a move to quarantine as a tombstone, then file by file. A crash in between
leaves the tombstone, which the next cleanup or builder of that key removes.
"""

from __future__ import annotations

import os
import re

from weightlease import filesystem
from weightlease.errors import Failure, FailureCode, Stage
from weightlease.locks import FileLock
from weightlease.reports import CleanupResult, CleanupStatus
from weightlease.store import containment
from weightlease.store.domain import Domain
from weightlease.store.failpoints import Point, reach
from weightlease.store.layout import QuarantineReason
from weightlease.store.leases import LeaseDirectory

_QUARANTINE_NAME = re.compile(r"([0-9a-f]{64})\.([a-z_-]+)\.[0-9a-f]{32}")


def cleanup(domain: Domain, key: str) -> CleanupResult:
    """Remove the artifact of `key` with its assets, deny marker and staging, if nobody uses it."""
    try:
        build = FileLock.try_acquire(domain.paths.build_lock(key), exclusive=True)
        if build is None:
            return CleanupResult(CleanupStatus.ACTIVE_BUILD)
        with build:
            return _under_build_lock(domain, key)
    except OSError as error:
        return CleanupResult(CleanupStatus.FAILED, failure=_failed(key, error))


def quarantine_name(name: str) -> tuple[str, str] | None:
    """Key and reason in the name of a quarantine entry, or None: it is none of ours."""
    match = _QUARANTINE_NAME.fullmatch(name)
    return None if match is None else (match[1], match[2])


def cleanup_quarantined(domain: Domain, storage_name: str) -> CleanupResult:
    """Remove one entry of quarantine, named as an inspection names it."""
    parsed = quarantine_name(storage_name)
    if parsed is None:
        failure = Failure(
            Stage.CONFIGURATION,
            FailureCode.INVALID_CONFIG,
            retryable=False,
            message=f"{storage_name[:200]!r} is not the name of a quarantined artifact",
        )
        return CleanupResult(CleanupStatus.FAILED, failure=failure)
    path = f"{domain.paths.quarantine}/{storage_name}"
    try:
        build = FileLock.try_acquire(domain.paths.build_lock(parsed[0]), exclusive=True)
        if build is None:
            return CleanupResult(CleanupStatus.ACTIVE_BUILD)
        with build:
            if not filesystem.exists(path):
                return CleanupResult(CleanupStatus.ABSENT)
            freed = filesystem.remove_tree(path)
            filesystem.sync_directory(domain.paths.quarantine)
            return CleanupResult(CleanupStatus.REMOVED, freed)
    except OSError as error:
        return CleanupResult(CleanupStatus.FAILED, failure=_failed(storage_name, error))


def _under_build_lock(domain: Domain, key: str) -> CleanupResult:
    leases = LeaseDirectory(domain.paths.root)
    artifact = FileLock.try_acquire(domain.paths.artifact_lock(key), exclusive=True)
    holders = tuple(str(record.holder) for record in leases.holders(key))
    if artifact is None:
        return CleanupResult(CleanupStatus.ACTIVE_LEASE, holders=holders)
    with artifact:
        # Lease files count on their own: after an agent's crash their locks live on while the
        # artifact lock that the agent held for them does not.
        if holders:
            return CleanupResult(CleanupStatus.ACTIVE_LEASE, holders=holders)
        return _remove(domain, key)


def _remove(domain: Domain, key: str) -> CleanupResult:
    paths = domain.paths
    found = any(
        filesystem.exists(path)
        for path in (paths.artifact(key), paths.asset_tree(key), paths.denial(key))
    )
    reach(Point.BEFORE_TOMBSTONE)
    containment.finish_moves(paths, key)
    containment.quarantine(paths, key, QuarantineReason.CLEANUP)
    reach(Point.AFTER_TOMBSTONE)
    freed = filesystem.remove_tree(paths.asset_tree(key))
    freed += containment.remove_entries(paths.quarantine, f"{key}.{QuarantineReason.CLEANUP}")
    freed += containment.remove_entries(paths.staging, key)
    if found:
        filesystem.sync_directory(paths.assets)
    reach(Point.BEFORE_DENY_REMOVAL)
    containment.remove_denial(paths, key)
    status = CleanupStatus.REMOVED if found or freed else CleanupStatus.ABSENT
    return CleanupResult(status, freed)


def _failed(name: str, error: OSError) -> Failure:
    return Failure(
        Stage.LIFECYCLE,
        FailureCode.QUARANTINE_FAILED,
        retryable=not isinstance(error, NotADirectoryError),
        message=f"cannot remove {name}: {error}",
        details=filesystem.error_details(error),
    )


def keys_with_leftovers(domain: Domain) -> tuple[str, ...]:
    """Keys that have staging, a tombstone or orphaned assets: what a sweeper goes through."""
    paths = domain.paths
    published = set(os.listdir(paths.artifacts))
    names = [*os.listdir(paths.staging), *(set(os.listdir(paths.assets)) - published)]
    names += [
        name for name in os.listdir(paths.quarantine) if f".{QuarantineReason.CLEANUP}." in name
    ]
    return tuple(sorted({name[:64] for name in names}))
