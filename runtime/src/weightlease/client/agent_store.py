"""`AgentStore`: the `HostWeightStore` of a process that reaches its node's agent over a socket.

Thread-safe: connections are lent to one caller at a time. A forked child opens its own. An acquire
is asked again once when the connection broke under it; nothing else is.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Self

import msgspec

from weightlease import wire
from weightlease.client.connection import AgentUnreachableError, Connection
from weightlease.client.publication import Publication
from weightlease.client.settings import ClientSettings
from weightlease.errors import FailureCode, ManifestError, Stage, WeightLeaseError
from weightlease.identity import WeightArtifactIdentity, is_key
from weightlease.lease import LeaseProvenance, WeightLease
from weightlease.lease_manifest import LeasedManifest
from weightlease.lease_mapping import require_regular_file
from weightlease.manifest import MANIFEST_FILE, MAX_METADATA_BYTES
from weightlease.names import parse_reference
from weightlease.policy import Validation
from weightlease.reports import (
    CleanupResult,
    CleanupStatus,
    DomainInspection,
    InventoryEntry,
    InventoryState,
    StoreResult,
    StoreStatus,
)
from weightlease.store.lookup import INVALID_CODES
from weightlease.store.protocol import WeightProducer

_IDLE_CONNECTIONS = 4
_DEFAULT_WAIT_SECONDS = 600.0
# The wire has no infinity, and an agent waits less.
_LONGEST_WAIT_SECONDS = 7 * 24 * 3600.0
_OUTCOME = {
    FailureCode.LOCAL_MISS: StoreStatus.MISS,
    FailureCode.ACTIVE_BUILD_TIMEOUT: StoreStatus.TIMEOUT,
    **dict.fromkeys(INVALID_CODES, StoreStatus.INVALID),
}


def connect(
    socket: str | None = None, token_file: str | None = None, *, timeout: float = 30.0
) -> AgentStore:
    """Reach the node's agent, now.

    Args:
        socket: the agent's socket; else WEIGHTLEASE_SOCKET, else the path a pod mounts.
        token_file: a projected token; else WEIGHTLEASE_TOKEN_FILE, else the pod's path if present.
        timeout: seconds the agent may take for one answer.

    Raises:
        AgentUnreachableError: no socket, nobody behind it, or no answer.
        WeightLeaseError: the agent refuses this process, or is not trusted.

    """
    store = AgentStore(socket, token_file, timeout=timeout)
    store.hello()
    return store


class AgentStore:
    """Leases, publishes and inspects through the agent; a context manager."""

    def __init__(
        self,
        socket_path: str | None = None,
        token_file: str | None = None,
        timeout: float = 30.0,
        *,
        settings: ClientSettings | None = None,
    ) -> None:
        self.settings = settings or ClientSettings.from_environment(
            socket_path, token_file, timeout
        )
        # Appending and popping a deque is atomic, so no lock can be held over a fork.
        self._idle: deque[Connection] = deque()

    # ---- leases ----

    def acquire(
        self,
        artifact: str,
        *,
        validation: Validation = Validation.MANIFEST_AND_METADATA,
        assets: bool = True,
    ) -> WeightLease:
        """Lease `artifact`, a key or a reference `[namespace/]artifact[:component][@coordinates]`.

        Raises:
            WeightLeaseError: `local_miss` where this node does not hold it; else why not.

        """
        named = {"key": artifact} if is_key(artifact) else {"reference": _reference(artifact)}
        params = wire.AcquireParams(validation=str(validation), assets=assets, **named)
        try:
            lease = self._acquire(params)
        except AgentUnreachableError as error:
            if not error.broken:
                raise
            # Whatever it granted ended with the connection: its descriptors were closed.
            lease = self._acquire(params)
        if params.key and lease.key != params.key:
            lease.close()
            raise ManifestError(f"asked for {params.key}, the agent leased {lease.key}")
        return lease

    def lookup(
        self,
        identity: WeightArtifactIdentity,
        *,
        validation: Validation = Validation.MANIFEST_AND_METADATA,
        timeout: float | None = None,  # noqa: ARG002 - the agent never waits in a lookup
    ) -> StoreResult:
        """See `HostWeightStore.lookup`."""
        try:
            lease = self.acquire(identity.key, validation=validation)
        except WeightLeaseError as error:
            return _unsuccessful(error)
        if lease.identity.canonical_bytes != identity.canonical_bytes:
            lease.close()
            return _unsuccessful(
                WeightLeaseError.of(
                    Stage.VALIDATION,
                    FailureCode.MANIFEST_INCOMPATIBLE,
                    f"the artifact of key {identity.key} has another identity",
                )
            )
        return StoreResult(StoreStatus.HIT, lease)

    def release(self, lease: WeightLease) -> None:
        """Close `lease` and tell the agent to look; the agent notices without it, later."""
        lease_id = lease.provenance.lease_id
        lease.close()
        self._ask("release", wire.ReleaseParams(lease_id), wire.Empty)

    # ---- publishing ----

    def begin(
        self,
        identity: WeightArtifactIdentity,
        total_bytes: int,
        *,
        wait_seconds: float = _DEFAULT_WAIT_SECONDS,
        storage_class: str = "disk",
        namespace: str = "",
    ) -> Publication:
        """Become the producer of `identity`, or find it present; waits for another builder.

        `total_bytes` bounds everything that will be streamed. `namespace` is for bare hosts.

        Raises:
            WeightLeaseError: not allowed, no room, or another builder did not end in time.

        """
        wait_seconds = min(wait_seconds, _LONGEST_WAIT_SECONDS)
        params = wire.BeginParams(
            identity.to_dict(), total_bytes, wait_seconds, storage_class, namespace
        )
        connection = self._lend()
        try:
            begun, _ = connection.request(
                "begin_publication", params, wire.BeginResult, wait_seconds + self.settings.timeout
            )
        except BaseException:
            self._give_back(connection)
            raise
        if begun.key != identity.key:
            connection.close()
            raise ManifestError(f"asked to build {identity.key}, the agent began {begun.key}")
        return Publication(connection, self.settings, begun, self._give_back)

    def get_or_build(
        self,
        producer: WeightProducer,
        *,
        validation: Validation = Validation.MANIFEST_AND_METADATA,
        timeout: float | None = None,
    ) -> StoreResult:
        """See `HostWeightStore.get_or_build`; `timeout` bounds the wait for another builder.

        A producer's `expected_manifest_sha256`, if it has one, goes with the publication.
        """
        found = self.lookup(producer.identity, validation=validation)
        if found.status not in {StoreStatus.MISS, StoreStatus.INVALID}:
            return found
        wait = _DEFAULT_WAIT_SECONDS if timeout is None else timeout
        try:
            status = self._build(producer, wait)
        except WeightLeaseError as error:
            return _not_built(error)
        built = self.lookup(producer.identity, validation=validation)
        return StoreResult(status, built.lease) if built.lease is not None else built

    # ---- administration ----

    def hello(self) -> wire.HelloResult:
        """Whom the agent takes this process for.

        Raises:
            WeightLeaseError: the agent cannot be reached or refuses.

        """
        connection = self._lend()
        self._give_back(connection)
        return connection.hello

    def inspect_artifacts(self, key: str = "") -> wire.InspectResult:
        """What this peer may see: one artifact by `key`, or all, with holders and references.

        Raises:
            WeightLeaseError: the agent cannot be reached or refuses.

        """
        return self._ask("inspect", wire.InspectParams(key), wire.InspectResult)

    def inspect(self) -> DomainInspection:
        """See `HostWeightStore.inspect`.

        A peer sees artifacts of the domains it may read, never the node's disks: uuid, class and
        filesystem are empty, free bytes 0.
        """
        found = self.inspect_artifacts().artifacts
        return DomainInspection(
            domain_uuid="",
            scope="node",
            domain_id=self.hello().node,
            storage_class="",
            filesystem_type="",
            store_bytes=sum(entry.size_bytes for entry in found),
            filesystem_free_bytes=0,
            inventory=tuple(
                InventoryEntry(
                    entry.key,
                    InventoryState(entry.state),
                    entry.storage_name,
                    entry.size_bytes,
                    entry.reason,
                )
                for entry in found
            ),
        )

    def cleanup(self, key: str, *, namespace: str = "") -> CleanupResult:
        """See `HostWeightStore.cleanup`; `namespace` is for bare hosts."""
        try:
            reply = self._ask("cleanup", wire.CleanupParams(key, namespace), wire.CleanupReply)
            return CleanupResult(CleanupStatus(reply.status), reply.freed_bytes, reply.holders)
        except WeightLeaseError as error:
            return CleanupResult(CleanupStatus.FAILED, failure=error.failure)

    def close(self) -> None:
        """Close idle connections; leases go on, and a later call connects again."""
        while self._idle:
            self._idle.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # ---- inside ----

    def _acquire(self, params: wire.AcquireParams) -> WeightLease:
        full = params.validation == Validation.FULL_CHECKSUM
        timeout = self.settings.work_timeout if full else self.settings.timeout
        connection = self._lend()
        try:
            granted, fds = connection.request(
                "acquire", params, wire.AcquireResult, timeout, fd_count="fd_count"
            )
        finally:
            self._give_back(connection)
        return _lease(granted, fds, assets=params.assets)

    def _build(self, producer: WeightProducer, wait_seconds: float) -> StoreStatus:
        with self.begin(
            producer.identity, producer.total_bytes, wait_seconds=wait_seconds
        ) as publication:
            if publication.present:
                return StoreStatus.JOINED
            try:
                metadata = producer.produce(publication)
            except WeightLeaseError:
                raise
            except Exception as error:
                raise WeightLeaseError.of(
                    Stage.PRODUCTION,
                    FailureCode.PRODUCER_FAILED,
                    f"the producer failed: {type(error).__name__}: {error}",
                ) from error
            expected = getattr(producer, "expected_manifest_sha256", "")
            publication.finalize(metadata, expected_manifest_sha256=expected)
            return StoreStatus.BUILT

    def _ask(self, method: str, params: msgspec.Struct, kind: type[wire.ResultT]) -> wire.ResultT:
        connection = self._lend()
        try:
            result, _ = connection.request(method, params, kind, self.settings.timeout)
        finally:
            self._give_back(connection)
        return result

    def _lend(self) -> Connection:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            if connection.idle:
                return connection
            connection.close()
        return Connection.establish(self.settings)

    def _give_back(self, connection: Connection) -> None:
        if connection.usable and len(self._idle) < _IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            connection.close()


def _lease(granted: wire.AcquireResult, fds: list[int], *, assets: bool) -> WeightLease:
    """Check what was granted and own its descriptors; on an error all of them are closed."""
    try:
        manifest = _read_manifest(granted, fds, assets=assets)
        validation = _validation(granted.validation)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    os.close(fds[0])
    end = 2 + len(manifest.files)
    provenance = LeaseProvenance(
        key=granted.key,
        artifact_content_sha256=manifest.artifact_content_sha256,
        manifest_sha256=granted.manifest_sha256,
        domain_uuid=granted.domain_uuid,
        publication_id=granted.publication_id,
        storage_class=granted.storage_class,
        validation=validation,
        resolution_source="agent",
        lease_id=granted.lease_id,
    )
    return WeightLease(manifest, fds[2:end], fds[end:], fds[1], provenance)


def _read_manifest(granted: wire.AcquireResult, fds: list[int], *, assets: bool) -> LeasedManifest:
    if not fds:
        raise ManifestError("the lease came without descriptors")
    size = granted.manifest_size
    if not 0 < size <= MAX_METADATA_BYTES:
        raise ManifestError(f"{MANIFEST_FILE} of {size} bytes is outside 1..{MAX_METADATA_BYTES}")
    require_regular_file(MANIFEST_FILE, fds[0], size)
    manifest = LeasedManifest.parse(os.pread(fds[0], size, 0))
    if manifest.artifact_key != granted.key:
        raise ManifestError(
            f"the lease is of {granted.key} and its manifest of {manifest.artifact_key!r}"
        )
    expected = 2 + len(manifest.files) + (len(manifest.assets) if assets else 0)
    if len(fds) != expected:
        raise ManifestError(f"the lease came with {len(fds)} descriptors instead of {expected}")
    return manifest


def _validation(text: str) -> Validation:
    try:
        return Validation(text)
    except ValueError as error:
        raise ManifestError(f"the agent validated by {text[:40]!r}, unknown here") from error


def _reference(text: str) -> str:
    try:
        return str(parse_reference(text))
    except ValueError as error:
        raise WeightLeaseError.of(
            Stage.CONFIGURATION, FailureCode.INVALID_CONFIG, str(error)
        ) from error


def _unsuccessful(error: WeightLeaseError) -> StoreResult:
    status = _OUTCOME.get(error.failure.code, StoreStatus.FAILED)
    return StoreResult(status, failure=None if status is StoreStatus.MISS else error.failure)


def _not_built(error: WeightLeaseError) -> StoreResult:
    late = error.failure.code is FailureCode.ACTIVE_BUILD_TIMEOUT
    return StoreResult(StoreStatus.TIMEOUT if late else StoreStatus.FAILED, failure=error.failure)
