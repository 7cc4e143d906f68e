"""Finding an artifact: under its shared lock, validated, or a typed reason why not."""

from __future__ import annotations

from weightlease import filesystem
from weightlease.errors import Failure, FailureCode, ManifestError, Stage, WeightLeaseError
from weightlease.identity import WeightArtifactIdentity, is_key
from weightlease.locks import Deadline, FileLock
from weightlease.policy import Validation
from weightlease.store import containment
from weightlease.store.artifact import Checked, OpenArtifact, raise_denied
from weightlease.store.domain import Domain
from weightlease.store.validation import validate

_DENIED_CODES = frozenset(
    {
        FailureCode.MANIFEST_CORRUPT,
        FailureCode.MANIFEST_INCOMPATIBLE,
        FailureCode.CHECKSUM_MISMATCH,
    }
)
# what a lookup answers for an artifact that is there but cannot be used
INVALID_CODES = _DENIED_CODES | {FailureCode.ARTIFACT_DENIED}


def open_artifact(
    domain: Domain,
    key: str,
    identity: WeightArtifactIdentity | None,
    validation: Validation,
    deadline: Deadline,
    *,
    deny_invalid: bool = True,
) -> OpenArtifact:
    """Validate the artifact of `key` and hold it.

    With `deny_invalid`, an invalid artifact is denied to later lookups.

    Raises:
        WeightLeaseError: local_miss; one of INVALID_CODES; active_build_timeout when the lock is
            not free by `deadline`; domain_unavailable or enospc, both retryable.

    """
    if not is_key(key):
        raise WeightLeaseError.of(
            Stage.CONFIGURATION,
            FailureCode.INVALID_CONFIG,
            f"{key[:80]!r} is not a key of 64 lowercase hex digits",
        )
    with filesystem.storage_errors(f"cannot lock artifact {key}"):
        lock = FileLock.acquire(domain.paths.artifact_lock(key), exclusive=False, deadline=deadline)
    try:
        _require_present(domain, key)
        try:
            checked = _validate(domain, key, identity, validation)
        except WeightLeaseError as error:
            if deny_invalid and error.failure.code in _DENIED_CODES:
                _deny(domain, key, error.failure, lock)
            raise
        artifact = OpenArtifact(domain, lock, checked, validation)
        _recheck(artifact)
    except BaseException:
        lock.close()
        raise
    return artifact


def _validate(
    domain: Domain, key: str, identity: WeightArtifactIdentity | None, validation: Validation
) -> Checked:
    try:
        return validate(domain, key, identity, validation)
    except OSError as error:
        if filesystem.is_structure_error(error):
            raise ManifestError(f"artifact {key} is not whole: {error}") from error
        failure = filesystem.storage_failure(error, f"cannot read artifact {key}")
        raise WeightLeaseError(failure) from error


def _require_present(domain: Domain, key: str) -> None:
    with filesystem.storage_errors(f"cannot look for artifact {key}"):
        present = filesystem.exists(domain.paths.artifact(key))
        # a marker without an artifact is the trace of a finished cleanup, not a denial
        denied = present and filesystem.exists(domain.paths.denial(key))
    if not present:
        raise WeightLeaseError.of(
            Stage.LOOKUP, FailureCode.LOCAL_MISS, f"there is no artifact {key} in this store"
        )
    if denied:
        raise_denied(key)


def _recheck(artifact: OpenArtifact) -> None:
    # A concurrent lookup that checks more may have denied the artifact meanwhile.
    with filesystem.storage_errors(f"cannot look at artifact {artifact.key} again"):
        artifact.require_allowed()


def _deny(domain: Domain, key: str, failure: Failure, lock: FileLock) -> None:
    try:
        containment.write_denial(domain.paths, key, failure)
    except OSError as error:
        done = containment.contain_undeniable(domain.paths, key, lock, Deadline(0))
        broken = filesystem.storage_failure(
            error, f"cannot deny invalid artifact {key}", containment=done, invalid=str(failure)
        )
        raise WeightLeaseError(broken) from error
