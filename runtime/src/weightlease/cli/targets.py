"""What a command works on, behind one interface: a store root, or an agent's socket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from weightlease.cli.roots import live_agent, open_root, require_no_agent
from weightlease.client import AgentStore
from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.identity import is_key
from weightlease.lease import WeightLease
from weightlease.policy import Validation
from weightlease.producer.snapshot import SnapshotProducer
from weightlease.reports import CleanupResult, InventoryState, StoreStatus
from weightlease.store.artifact import OpenArtifact
from weightlease.wire import InspectedArtifact

_CHANGING = {"publish", "cleanup"}


@dataclass(frozen=True)
class Published:
    """How a publish ended; `status` is built, joined or hit. Sizes in bytes."""

    key: str
    status: StoreStatus
    manifest_sha256: str
    payload_bytes: int


@dataclass(frozen=True)
class Listing:
    """What a target holds; `truncated` where an agent shows only the first part."""

    artifacts: tuple[InspectedArtifact, ...]
    truncated: bool = False


class Target(Protocol):
    """A store to work on. Every method raises WeightLeaseError."""

    def entries(self, key: str = "") -> Listing:
        """One artifact's entries, or all."""

    def lease(self, artifact: str) -> WeightLease:
        """A lease with assets."""

    def deny(self, key: str) -> None:
        """Let the store find for itself that `key` is damaged, so that nobody else leases it."""

    def publish(self, producer: SnapshotProducer) -> Published:
        """Publish, or find it present."""

    def cleanup(self, key: str) -> CleanupResult:
        """Remove one artifact."""

    def close(self) -> None:
        """Let go of the store; leases go on."""


class RootTarget:
    """A store root on this host."""

    def __init__(self, root: str, command: str) -> None:
        if command in _CHANGING:
            require_no_agent(root, command)
        self._root = root
        self._store = open_root(root, create=command == "publish")

    def entries(self, key: str = "") -> Listing:
        inspection = self._store.inspect()
        holders: dict[str, list[str]] = {}
        for record, active in self._store.leases.scan():
            if active:
                holders.setdefault(record.key, []).append(str(record.holder))
        found = [
            InspectedArtifact(
                key=entry.artifact_key,
                state=str(entry.state),
                storage_name=entry.storage_name,
                size_bytes=entry.size_bytes,
                namespace="",
                storage_class=str(self._store.domain.policy.storage_class),
                reason=entry.reason,
                leases=tuple(holders.get(entry.artifact_key, ())),
            )
            for entry in inspection.inventory
            if key in {"", entry.artifact_key}
        ]
        return Listing(_merged(found))

    def lease(self, artifact: str) -> WeightLease:
        found = self._store.lookup_key(_require_key(artifact))
        if found.failure is not None:
            raise WeightLeaseError(found.failure)
        if found.lease is None:
            raise WeightLeaseError.of(
                Stage.LOOKUP, FailureCode.LOCAL_MISS, f"{self._root} holds no artifact {artifact}"
            )
        return found.lease

    def deny(self, key: str) -> None:
        if not live_agent(self._root):
            self._store.verify(key)

    def publish(self, producer: SnapshotProducer) -> Published:
        begun = self._store.begin(producer.identity, producer.total_bytes)
        if isinstance(begun, OpenArtifact):
            with begun:
                return _published(begun, StoreStatus.HIT)
        try:
            with begun.finalize(producer.produce(begun)) as opened:
                return _published(opened, StoreStatus.BUILT)
        finally:
            begun.abort()

    def cleanup(self, key: str) -> CleanupResult:
        return self._store.cleanup(_require_key(key))

    def close(self) -> None:
        """Nothing is held between two commands."""


class AgentTarget:
    """The agent behind a socket; `namespace` and `storage_class` go with a publish."""

    def __init__(
        self,
        socket: str | None,
        token_file: str | None,
        *,
        namespace: str = "",
        storage_class: str = "disk",
    ) -> None:
        self._store = AgentStore(socket, token_file)
        self._namespace = namespace
        self._storage_class = storage_class

    def entries(self, key: str = "") -> Listing:
        found = self._store.inspect_artifacts(key)
        return Listing(_merged(found.artifacts), found.truncated)

    def lease(self, artifact: str) -> WeightLease:
        return self._store.acquire(artifact)

    def deny(self, key: str) -> None:
        self._store.acquire(key, validation=Validation.FULL_CHECKSUM).close()

    def publish(self, producer: SnapshotProducer) -> Published:
        begun = self._store.begin(
            producer.identity,
            producer.total_bytes,
            storage_class=self._storage_class,
            namespace=self._namespace,
        )
        with begun as publication:
            if publication.present:
                size = publication.payload_bytes
                return Published(
                    publication.key, StoreStatus.HIT, publication.manifest_sha256, size
                )
            done = publication.finalize(producer.produce(publication))
        return Published(done.key, StoreStatus.BUILT, done.manifest_sha256, done.payload_bytes)

    def cleanup(self, key: str) -> CleanupResult:
        return self._store.cleanup(_require_key(key), namespace=self._namespace)

    def close(self) -> None:
        self._store.close()


def _merged(found: Sequence[InspectedArtifact]) -> tuple[InspectedArtifact, ...]:
    """One entry for an artifact and the marker that denies it: nobody can lease it."""
    ready, denied = str(InventoryState.READY), str(InventoryState.DENIED)
    markers = {(one.namespace, one.key): one for one in found if one.state == denied}
    merged = []
    for one in found:
        marker = markers.get((one.namespace, one.key))
        if one.state == ready and marker is not None:
            merged.append(msgspec.structs.replace(one, state=denied, reason=marker.reason))
        elif one is not marker or not _is_stored(found, one):
            merged.append(one)
    return tuple(merged)


def _is_stored(found: Sequence[InspectedArtifact], marker: InspectedArtifact) -> bool:
    wanted = (str(InventoryState.READY), marker.namespace, marker.key)
    return any((one.state, one.namespace, one.key) == wanted for one in found)


def _published(artifact: OpenArtifact, status: StoreStatus) -> Published:
    size = artifact.manifest.payload_bytes
    return Published(artifact.key, status, artifact.manifest_sha256, size)


def _require_key(artifact: str) -> str:
    if not is_key(artifact):
        raise WeightLeaseError.of(
            Stage.CONFIGURATION,
            FailureCode.INVALID_CONFIG,
            f"{artifact[:80]!r} is not a key of 64 lowercase hex digits; only an agent knows names",
        )
    return artifact
