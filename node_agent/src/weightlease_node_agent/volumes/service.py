"""Volumes from publication to their end; the CSI driver asks, a pod's files and socket follow.

    publish     lease the artifact → write the folder → bind the socket → write the record
    unpublish   remove the record → close the socket → end the lease → remove the folder

A crash leaves either a volume with its record, which the next agent serves again, or remains
without one, which it removes. Leases of volumes are files (`weightlease.lease_record`), so they
last while no agent runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import structlog

from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.lease_record import HolderKind
from weightlease.unix_socket import Credentials
from weightlease.wire import (
    ListedVolume,
    ListVolumesResult,
    PublishVolumeParams,
    PublishVolumeResult,
    VolumeContent,
)
from weightlease_node_agent.domains import Domains, Place
from weightlease_node_agent.executor import Run
from weightlease_node_agent.leases import Lease, Leases
from weightlease_node_agent.peers import Peer
from weightlease_node_agent.pins import KeyedLocks
from weightlease_node_agent.volumes.checks import check_publish
from weightlease_node_agent.volumes.directory import (
    SCHEMA_VERSION,
    VolumeDirectory,
    VolumeLease,
    VolumeRecord,
    handle_of,
    unusable,
)
from weightlease_node_agent.volumes.tree import plan_links, write_tree
from weightlease_node_agent.wanted import missing

log = structlog.get_logger(__name__)
MAX_VOLUMES = 1024


class Listener(Protocol):
    """A listening socket (`server.SocketServer`)."""

    def start(self) -> None:
        """Bind and listen."""

    def stop(self) -> None:
        """Stop; remove the path."""


Listen = Callable[[Path, Peer], Listener]
Acquire = Callable[[Peer, str, str], Awaitable[Lease]]


class Volumes:
    """Every volume of this node.

    `listen` makes the socket of one pod; `acquire` leases a reference for a pod and a volume.
    """

    def __init__(
        self,
        directory: VolumeDirectory,
        node: str,
        domains: Domains,
        leases: Leases,
        run: Run,
        *,
        listen: Listen,
        acquire: Acquire,
    ) -> None:
        self._directory = directory
        self._node = node
        self._domains = domains
        self._leases = leases
        self._run = run
        self._listen = listen
        self._acquire = acquire
        self._records: dict[str, VolumeRecord] = {}
        self._listeners: dict[str, Listener] = {}
        self._busy = KeyedLocks()

    async def start(self) -> None:
        """Serve every volume of an earlier agent; its leases have been adopted already.

        Raises:
            OSError: the volumes' directory is unusable.

        """
        for record in await self._run(self._directory.load):
            self._records[record.handle] = record
            try:
                await self._pin_again(record)
            except (WeightLeaseError, OSError) as error:
                log.warning("a volume's artifact is lost", pod=record.pod, error=str(error))
            try:
                self._serve(record)
            except OSError as error:
                log.warning("a volume's socket is not served", pod=record.pod, error=str(error))
        await self._end_orphans()

    def stop(self) -> None:
        """Close the sockets; records and leases stay."""
        for listener in self._listeners.values():
            listener.stop()
        self._listeners.clear()

    async def publish(self, params: PublishVolumeParams) -> PublishVolumeResult:
        """Make a volume, or find it made.

        Raises:
            WeightLeaseError: what the pod's event will tell.
            OSError: its folder can't be written.

        """
        check_publish(params)
        handle = handle_of(params.volume_id)
        async with self._busy.hold(handle):
            record = self._records.get(handle)
            if record is None:
                record = await self._make(params)
            elif _asked(record) != params:
                raise unusable(f"volume {params.volume_id!r} is another pod's")
            elif handle not in self._listeners:
                self._serve(record)
        return PublishVolumeResult(handle, _content(record.lease))

    async def unpublish(self, volume_id: str) -> None:
        """End a volume; one that is not there is no error.

        Raises:
            OSError: it can't be removed.

        """
        handle = handle_of(volume_id)
        async with self._busy.hold(handle):
            await self._run(self._directory.retract, handle)
            record = self._records.pop(handle, None)
            await self._clear(handle)
        if record is not None:
            log.info("volume ended", pod=record.pod, namespace=record.namespace)

    def list(self) -> ListVolumesResult:
        """All volumes."""
        return ListVolumesResult(
            tuple(ListedVolume(each.volume_id, each.target) for each in self._records.values())
        )

    async def _make(self, params: PublishVolumeParams) -> VolumeRecord:
        if len(self._records) >= MAX_VOLUMES:
            raise WeightLeaseError.of(
                Stage.ACCESS,
                FailureCode.TOO_MANY_REQUESTS,
                f"this node serves {MAX_VOLUMES} volumes already",
                retryable=True,
            )
        handle = handle_of(params.volume_id)
        try:
            lease = await self._lease(params, handle)
            await self._run(self._write, handle, None if lease is None else _links(lease))
            record = _record(params, lease)
            self._serve(record)
            await self._run(self._directory.commit, record)
        except BaseException:
            await self._clear(handle)
            raise
        self._records[handle] = record
        log.info("volume made", pod=params.pod, namespace=params.namespace, of=params.artifact)
        return record

    async def _lease(self, params: PublishVolumeParams, handle: str) -> Lease | None:
        if not params.artifact:
            return None
        try:
            return await self._acquire(self._peer(params), params.artifact, handle)
        except WeightLeaseError as error:
            if error.failure.code is not FailureCode.LOCAL_MISS:
                raise
            raise missing(
                f"artifact {params.artifact} is not ready on node {self._node}: "
                f"{error.failure.message}; the volume is mounted once it is, and `kubectl describe "
                "weightartifact` tells how far that is"
            ) from error

    async def _clear(self, handle: str) -> None:
        listener = self._listeners.pop(handle, None)
        if listener is not None:
            listener.stop()
        for lease in self._leases.of_volumes():
            if lease.record.volume == handle:
                await self._leases.end_volume(lease)
        await self._run(self._directory.remove, handle)

    def _write(self, handle: str, links: dict[str, str] | None) -> None:
        folder = self._directory.prepare(handle)
        if links is not None:
            write_tree(folder, links)

    def _serve(self, record: VolumeRecord) -> None:
        listener = self._listen(self._directory.socket(record.handle), self._peer(_asked(record)))
        listener.start()
        self._listeners[record.handle] = listener

    async def _pin_again(self, record: VolumeRecord) -> None:
        """Write a lease file that was lost, while its artifact is still here."""
        wanted = record.lease
        if wanted is None or wanted.lease_id in self._known_leases():
            return
        domain = self._domains.get(Place(wanted.namespace, wanted.storage_class))
        if domain is None:
            raise missing(f"domain {wanted.namespace} {wanted.storage_class} is gone")
        holder = self._peer(_asked(record)).holder
        await self._leases.hold_volume(domain, wanted.key, holder, record.handle, wanted.lease_id)

    async def _end_orphans(self) -> None:
        wanted = {each.lease.lease_id for each in self._records.values() if each.lease is not None}
        for lease in self._leases.of_volumes():
            if lease.record.lease_id not in wanted:
                await self._leases.end_volume(lease)

    def _known_leases(self) -> set[str]:
        return {lease.record.lease_id for lease in self._leases.of_volumes()}

    def _peer(self, params: PublishVolumeParams) -> Peer:
        return Peer(
            HolderKind.POD,
            params.namespace,
            self._node,
            Credentials(0, 0),
            pod=params.pod,
            pod_uid=params.pod_uid,
            service_account=params.service_account,
        )


def _record(params: PublishVolumeParams, lease: Lease | None) -> VolumeRecord:
    held = None
    if lease is not None:
        place = lease.domain.place
        has_assets = lease.pin is not None and bool(lease.pin.assets)
        held = VolumeLease(
            place.storage_class,
            place.namespace,
            lease.record.key,
            lease.record.lease_id,
            has_assets,
        )
    return VolumeRecord(
        SCHEMA_VERSION,
        params.volume_id,
        params.target,
        params.namespace,
        params.pod,
        params.pod_uid,
        params.service_account,
        params.artifact,
        held,
    )


def _links(lease: Lease) -> dict[str, str]:
    if lease.pin is None:
        raise missing(f"artifact {lease.record.key} can't be opened now")
    return plan_links(lease.pin.manifest)


def _asked(record: VolumeRecord) -> PublishVolumeParams:
    """The request that a record answers."""
    return PublishVolumeParams(
        record.volume_id,
        record.target,
        record.namespace,
        record.pod,
        record.pod_uid,
        record.service_account,
        record.artifact,
    )


def _content(lease: VolumeLease | None) -> VolumeContent | None:
    if lease is None:
        return None
    return VolumeContent(str(lease.storage_class), lease.namespace, lease.key, lease.assets)
