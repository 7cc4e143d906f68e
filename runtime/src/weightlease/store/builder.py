"""Beginning a build: one builder per key, a second look, and a clean place to work in."""

from __future__ import annotations

from weightlease import filesystem
from weightlease.errors import Failure, FailureCode, Stage, WeightLeaseError, production_failure
from weightlease.identity import WeightArtifactIdentity
from weightlease.locks import Deadline, FileLock, HeldLocks
from weightlease.policy import BuildAdmission, Validation, WaitPolicy
from weightlease.store import containment
from weightlease.store.artifact import OpenArtifact
from weightlease.store.capacity import require_capacity
from weightlease.store.domain import Domain
from weightlease.store.layout import QuarantineReason
from weightlease.store.lookup import INVALID_CODES, open_artifact
from weightlease.store.publication import Publication


def begin(
    domain: Domain,
    identity: WeightArtifactIdentity,
    total_bytes: int,
    validation: Validation,
    timeout: float,
    wait: WaitPolicy,
) -> Publication | OpenArtifact:
    """Become the builder of `identity`, or get what another builder published meanwhile.

    Raises:
        WeightLeaseError: active_build_timeout, a capacity code, quarantine_failed, or what a
            lookup raises other than a miss or an invalid artifact.

    """
    if total_bytes <= 0:
        raise production_failure(f"total_bytes {total_bytes} must be positive")
    key = identity.key
    deadline = Deadline(timeout)

    def reopen() -> OpenArtifact:
        patience = Deadline(wait.coordination_timeout_seconds)
        return open_artifact(domain, key, identity, validation, patience)

    locks = _admitted(domain, key, deadline)
    try:
        present = _second_look(domain, identity, validation, deadline)
        if present is not None:
            locks.close()
            return present
        _make_room(domain, key, deadline)
        with filesystem.storage_errors(f"cannot stage artifact {key}"):
            require_capacity(domain, total_bytes)
            return Publication(domain, identity, total_bytes, locks, reopen, wait)
    except BaseException:
        locks.close()
        raise


def _admitted(domain: Domain, key: str, deadline: Deadline) -> HeldLocks:
    """The key's build lock, after the domain's where one builder at a time is admitted."""
    held: list[FileLock] = []
    wanted = [domain.paths.build_lock(key)]
    if domain.policy.capacity.build_admission is BuildAdmission.SERIALIZED:
        wanted.insert(0, domain.paths.domain_build_lock)
    try:
        with filesystem.storage_errors(f"cannot lock the build of {key}"):
            for path in wanted:
                lock = FileLock.acquire(
                    path, exclusive=True, deadline=deadline, stage=Stage.PRODUCTION
                )
                held.append(lock)
    except BaseException:
        HeldLocks(*held).close()
        raise
    return HeldLocks(*held)


def _second_look(
    domain: Domain, identity: WeightArtifactIdentity, validation: Validation, deadline: Deadline
) -> OpenArtifact | None:
    try:
        return open_artifact(domain, identity.key, identity, validation, deadline)
    except WeightLeaseError as error:
        if error.failure.code is FailureCode.LOCAL_MISS or error.failure.code in INVALID_CODES:
            return None
        raise


def _make_room(domain: Domain, key: str, deadline: Deadline) -> None:
    """Clear what crashes and invalid artifacts of this key left behind."""
    paths = domain.paths
    try:
        with FileLock.acquire(
            paths.artifact_lock(key), exclusive=True, deadline=deadline, stage=Stage.PRODUCTION
        ):
            containment.finish_moves(paths, key)
            containment.quarantine(paths, key, QuarantineReason.VALIDATION_FAILURE)
            containment.remove_entries(paths.quarantine, f"{key}.{QuarantineReason.CLEANUP}")
            containment.remove_denial(paths, key)
            containment.remove_entries(paths.staging, key)
            filesystem.remove_tree(paths.asset_tree(key))
    except OSError as error:
        failure = Failure(
            Stage.LIFECYCLE,
            FailureCode.QUARANTINE_FAILED,
            retryable=True,
            message=f"cannot clear the way for artifact {key}: {error}",
            details=filesystem.error_details(error),
        )
        raise WeightLeaseError(failure) from error
