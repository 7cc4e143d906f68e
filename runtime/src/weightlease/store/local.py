"""`LocalStore`: the store on this host's own file system, shared by processes through its locks."""

from __future__ import annotations

import os
import time

from weightlease import filesystem
from weightlease.errors import Failure, FailureCode, Stage, WeightLeaseError
from weightlease.identity import WeightArtifactIdentity, is_key
from weightlease.locks import Deadline
from weightlease.manifest import Manifest
from weightlease.policy import DomainPolicy, Validation, WaitPolicy
from weightlease.reports import (
    CleanupResult,
    CleanupStatus,
    DomainInspection,
    QuarantinedArtifact,
    StoreResult,
    StoreStatus,
)
from weightlease.store import builder, inspection, quarantine
from weightlease.store import cleanup as cleaning
from weightlease.store.artifact import OpenArtifact
from weightlease.store.domain import Domain, open_domain
from weightlease.store.leases import LeaseDirectory
from weightlease.store.lookup import INVALID_CODES, open_artifact
from weightlease.store.protocol import WeightProducer
from weightlease.store.publication import Publication
from weightlease.store.quarantine import ExpiredEntry

_METADATA = Validation.MANIFEST_AND_METADATA


class LocalStore:
    """A `HostWeightStore` on one domain; thread-safe, shared with other processes by its root."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        policy: DomainPolicy | None = None,
        wait: WaitPolicy | None = None,
    ) -> None:
        """Open the domain at `root`, making it if there is none.

        Raises:
            WeightLeaseError: domain_policy_mismatch, storage_class_mismatch, domain_unavailable.

        """
        self._wait = wait or WaitPolicy()
        deadline = Deadline(self._wait.coordination_timeout_seconds)
        self._domain = open_domain(root, policy or DomainPolicy(), deadline)
        self.leases = LeaseDirectory(self._domain.paths.root)

    @property
    def domain(self) -> Domain:
        return self._domain

    @property
    def root(self) -> str:
        """The domain's root, resolved."""
        return self._domain.paths.root

    # ---- HostWeightStore ----

    def lookup(
        self,
        identity: WeightArtifactIdentity,
        *,
        validation: Validation = _METADATA,
        timeout: float | None = None,
    ) -> StoreResult:
        """See `HostWeightStore.lookup`."""
        try:
            artifact = self._open(identity.key, identity, validation, timeout)
            return _leased(StoreStatus.HIT, artifact)
        except WeightLeaseError as error:
            return _as_result(error.failure)

    def lookup_key(
        self, key: str, *, validation: Validation = _METADATA, timeout: float | None = None
    ) -> StoreResult:
        """As `lookup`, by the key alone."""
        try:
            artifact = self._open(key, None, validation, timeout)
            return _leased(StoreStatus.HIT, artifact)
        except WeightLeaseError as error:
            return _as_result(error.failure)

    def get_or_build(
        self,
        producer: WeightProducer,
        *,
        validation: Validation = _METADATA,
        timeout: float | None = None,
    ) -> StoreResult:
        """See `HostWeightStore.get_or_build`."""
        first = self.lookup(producer.identity, validation=validation, timeout=timeout)
        if first.status not in {StoreStatus.MISS, StoreStatus.INVALID}:
            return first
        try:
            begun = self.begin(
                producer.identity,
                producer.total_bytes,
                timeout=timeout,
                validation=validation,
            )
            if isinstance(begun, OpenArtifact):
                return _leased(StoreStatus.JOINED, begun)
            return _leased(StoreStatus.BUILT, _produce(begun, producer))
        except WeightLeaseError as error:
            return _not_built(error.failure)

    def inspect(self) -> DomainInspection:
        """See `HostWeightStore.inspect`.

        Raises:
            WeightLeaseError: domain_unavailable.

        """
        with filesystem.storage_errors(f"cannot inspect {self.root}"):
            return inspection.inspect(self._domain)

    def cleanup(self, key: str) -> CleanupResult:
        """See `HostWeightStore.cleanup`."""
        if not is_key(key):
            failure = Failure(
                Stage.CONFIGURATION,
                FailureCode.INVALID_CONFIG,
                retryable=False,
                message=f"{key[:80]!r} is not a key of 64 lowercase hex digits",
            )
            return CleanupResult(CleanupStatus.FAILED, failure=failure)
        return cleaning.cleanup(self._domain, key)

    # ---- beyond the protocol ----

    def begin(
        self,
        identity: WeightArtifactIdentity,
        total_bytes: int,
        *,
        timeout: float | None = None,
        validation: Validation = _METADATA,
    ) -> Publication | OpenArtifact:
        """Become the one builder of `identity`, or get what another published meanwhile.

        `total_bytes` bounds payload and assets together. Waits at most `timeout` seconds for
        another builder.

        Raises:
            WeightLeaseError: active_build_timeout, a capacity code, quarantine_failed,
                domain_unavailable.

        """
        return builder.begin(
            self._domain, identity, total_bytes, validation, self._seconds(timeout), self._wait
        )

    def open_artifact(
        self, key: str, *, validation: Validation = _METADATA, timeout: float | None = None
    ) -> OpenArtifact:
        """Validate the artifact of `key` and hold its shared lock.

        Raises:
            WeightLeaseError: local_miss, artifact_denied, manifest_corrupt, manifest_incompatible,
                checksum_mismatch, active_build_timeout, domain_unavailable.

        """
        return self._open(key, None, validation, timeout)

    def verify(self, key: str, *, timeout: float | None = None) -> Manifest:
        """Read every byte of payload and assets; what differs is denied to later lookups.

        Raises:
            WeightLeaseError: as `open_artifact`.

        """
        with self._open(key, None, Validation.FULL_CHECKSUM, timeout) as artifact:
            return artifact.manifest

    def cleanup_quarantined(self, storage_name: str) -> CleanupResult:
        """Remove one quarantined artifact, named as `inspect` names it."""
        return cleaning.cleanup_quarantined(self._domain, storage_name)

    def quarantined(self) -> tuple[QuarantinedArtifact, ...]:
        """What lies in quarantine, oldest first.

        Raises:
            WeightLeaseError: domain_unavailable.

        """
        with filesystem.storage_errors(f"cannot list quarantine of {self.root}"):
            return quarantine.listed(self._domain, time.time())

    def expire_quarantine(self, older_than_seconds: float) -> tuple[ExpiredEntry, ...]:
        """Remove quarantined artifacts of at least that age; each answers for itself.

        Raises:
            WeightLeaseError: domain_unavailable, or invalid_config for a negative age.

        """
        with filesystem.storage_errors(f"cannot list quarantine of {self.root}"):
            return quarantine.expire(self._domain, older_than_seconds, time.time())

    def leftovers(self) -> tuple[str, ...]:
        """Keys that have staging, a tombstone or orphaned assets; `cleanup` would remove them.

        Raises:
            WeightLeaseError: domain_unavailable.

        """
        with filesystem.storage_errors(f"cannot list {self.root}"):
            return cleaning.keys_with_leftovers(self._domain)

    def _open(
        self,
        key: str,
        identity: WeightArtifactIdentity | None,
        validation: Validation,
        timeout: float | None,
    ) -> OpenArtifact:
        deadline = Deadline(self._seconds(timeout))
        return open_artifact(self._domain, key, identity, validation, deadline)

    def _seconds(self, timeout: float | None) -> float:
        return self._wait.coordination_timeout_seconds if timeout is None else timeout


def _produce(publication: Publication, producer: WeightProducer) -> OpenArtifact:
    try:
        metadata = producer.produce(publication)
    except WeightLeaseError:
        publication.abort()
        raise
    except Exception as error:
        publication.abort()
        if isinstance(error, OSError) and filesystem.is_out_of_space(error):
            failure = filesystem.storage_failure(error, "the producer ran out of space")
            raise WeightLeaseError(failure) from error
        raise WeightLeaseError.of(
            Stage.PRODUCTION,
            FailureCode.PRODUCER_FAILED,
            f"the producer failed: {type(error).__name__}: {error}",
        ) from error
    except BaseException:
        publication.abort()
        raise
    return publication.finalize(metadata)


def _leased(status: StoreStatus, artifact: OpenArtifact) -> StoreResult:
    try:
        with filesystem.storage_errors(f"cannot lease artifact {artifact.key}"):
            return StoreResult(status, lease=artifact.to_lease())
    finally:
        artifact.close()


def _as_result(failure: Failure) -> StoreResult:
    if failure.code is FailureCode.LOCAL_MISS:
        return StoreResult(StoreStatus.MISS)
    if failure.code in INVALID_CODES:
        return StoreResult(StoreStatus.INVALID, failure=failure)
    return _not_built(failure)


def _not_built(failure: Failure) -> StoreResult:
    if failure.code is FailureCode.ACTIVE_BUILD_TIMEOUT:
        return StoreResult(StoreStatus.TIMEOUT, failure=failure)
    return StoreResult(StoreStatus.FAILED, failure=failure)
