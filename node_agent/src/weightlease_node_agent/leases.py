"""Leases: granted with a file and its flock, over when nobody holds that flock any more.

Grant: write the lease file, open it once more below the export, take the shared flock of that open
description, hand it over, close our copy. No LOCK_UN ever: it would unlock every copy. From then on
the kernel alone knows whether the lease lives, and the agent asks it by trying the exclusive lock:
when a peer says `release`, when its connection closes, before a cleanup, and at intervals.

After a restart every lease file that is still locked is adopted and its artifact pinned again,
before the socket accepts anybody and before anything is removed.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

import structlog

from weightlease.errors import WeightLeaseError
from weightlease.lease_record import SCHEMA_VERSION, Holder, LeaseRecord
from weightlease.names import StorageClass
from weightlease.policy import Validation
from weightlease.wire import MAX_FDS_PER_FRAME
from weightlease_node_agent.domains import AgentDomain
from weightlease_node_agent.executor import Run
from weightlease_node_agent.pins import MarkedFile, Pin, Pins

log = structlog.get_logger(__name__)
_ATTEMPTS = 3
_LOCK_SECONDS = 2.0


@dataclass(frozen=True, eq=False)
class Lease:
    """A lease that was alive when last asked; `pin` is None where its artifact can't be opened."""

    record: LeaseRecord
    domain: AgentDomain
    pin: Pin | None


@dataclass(frozen=True)
class Grant:
    """A lease and the descriptors to send with it: manifest, lease file, payloads, assets."""

    lease: Lease
    pin: Pin
    descriptors: list[int]


class Leases:
    """Every lease of this agent's domains."""

    def __init__(
        self,
        pins: Pins,
        run: Run,
        now: Callable[[], datetime],
        on_change: Callable[[str, int], None] = lambda _namespace, _delta: None,
    ) -> None:
        self._pins = pins
        self._run = run
        self._now = now
        self._on_change = on_change
        self._leases: dict[str, Lease] = {}

    def of(self, domain: AgentDomain, key: str) -> list[LeaseRecord]:
        """The leases of one artifact, oldest first."""
        found = [
            lease.record
            for lease in self._leases.values()
            if lease.domain is domain and lease.record.key == key
        ]
        return sorted(found, key=lambda record: (record.since, record.lease_id))

    def counts(self) -> Counter[str]:
        """Leases by namespace."""
        return Counter(lease.domain.place.namespace for lease in self._leases.values())

    async def grant(
        self, domain: AgentDomain, key: str, holder: Holder, validation: Validation, *, assets: bool
    ) -> Grant:
        """A new lease on an artifact; the caller sends and closes the descriptors.

        Raises:
            WeightLeaseError: local_miss, what validation found, or domain_unavailable.

        """
        pin = await self._pins.hold(domain, key, validation)
        since = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            record, descriptors = await self._open_all(pin, holder, since, assets=assets)
        except BaseException:
            self._pins.let_go(pin)
            raise
        return Grant(self._note(Lease(record, domain, pin)), pin, descriptors)

    async def hold_volume(
        self, domain: AgentDomain, key: str, holder: Holder, volume: str, lease_id: str = ""
    ) -> Lease:
        """A lease that lasts until `end_volume`, whatever restarts; `volume` is its handle.

        Raises:
            WeightLeaseError: local_miss, what validation found, or artifact_denied.
            OSError: the lease file can't be written.

        """
        pin = await self._pins.hold(domain, key, Validation.MANIFEST_AND_METADATA)
        since = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        name = lease_id or secrets.token_hex(16)
        record = LeaseRecord(SCHEMA_VERSION, name, key, holder, since, volume)
        try:
            pin.artifact.require_allowed()
            await self._run(domain.store.leases.grant, record)
        except BaseException:
            self._pins.let_go(pin)
            raise
        return self._note(Lease(record, domain, pin))

    async def end_volume(self, lease: Lease) -> None:
        """End a volume's lease."""
        await self._run(lease.domain.store.leases.remove_volume, lease.record.lease_id)
        self._forget([lease])

    def of_volumes(self) -> list[Lease]:
        """The leases that volumes hold."""
        return [lease for lease in self._leases.values() if lease.record.volume]

    async def _open_all(
        self, pin: Pin, holder: Holder, since: str, *, assets: bool
    ) -> tuple[LeaseRecord, list[int]]:
        files = (*pin.payloads, *(pin.assets if assets else ()))
        # A handful of files in a tmpfs wait for no device: handing them to a thread and back would
        # cost more than opening them.
        in_memory = pin.domain.place.storage_class is StorageClass.MEMORY
        if in_memory and len(files) < MAX_FDS_PER_FRAME:
            try:
                return _open_all(pin, files, holder, since, 0.0)
            except OSError as error:
                # Somebody probes the new lease file this very moment: a thread may wait for that.
                if error.errno != errno.EBUSY:
                    raise
        return await self._run(_open_all, pin, files, holder, since, _LOCK_SECONDS)

    async def probe(self, lease_ids: Iterable[str]) -> None:
        """Ask the kernel about some leases and forget those that are over."""
        asked = [lease for name in lease_ids if (lease := self._leases.get(name))]
        if asked:
            self._forget(await self._run(_ended, asked))

    async def probe_artifact(self, domain: AgentDomain, key: str) -> None:
        """Ask about every lease of one artifact."""
        await self.probe([record.lease_id for record in self.of(domain, key)])

    async def sweep(self, domains: Iterable[AgentDomain]) -> None:
        """Ask about every lease, adopt those of an agent that ended since, drop idle pins."""
        await self.probe(list(self._leases))
        for domain in domains:
            await self.adopt(domain)
        self._pins.close_idle()

    async def adopt(self, domain: AgentDomain) -> None:
        """Take over lease files that somebody holds and this agent does not know."""
        for record in await self._run(_held, domain):
            if record.lease_id in self._leases:
                continue
            pin: Pin | None = None
            try:
                pin = await self._pins.hold(domain, record.key, Validation.MANIFEST_AND_METADATA)
            except WeightLeaseError as error:
                # The file itself still keeps every cleanup of ours away.
                log.warning("leased artifact can't be pinned", key=record.key, failure=str(error))
            lease = Lease(record, domain, pin)
            if self._note(lease) is lease:
                log.info("lease adopted", key=record.key, holder=str(record.holder))

    def _note(self, lease: Lease) -> Lease:
        """Know a lease by its file; a sweep and a grant may both have met it, each with a pin."""
        name = lease.record.lease_id
        known = self._leases.get(name)
        if known is not None and (known.pin is not None or lease.pin is None):
            if lease.pin is not None:
                self._pins.let_go(lease.pin)
            return known
        self._leases[name] = lease
        if known is None:
            self._on_change(lease.domain.place.namespace, 1)
        return lease

    def _forget(self, ended: Iterable[Lease]) -> None:
        for lease in ended:
            if self._leases.pop(lease.record.lease_id, None) is None:
                continue
            if lease.pin is not None:
                self._pins.let_go(lease.pin)
            self._on_change(lease.domain.place.namespace, -1)


def _open_all(
    pin: Pin, files: Iterable[MarkedFile], holder: Holder, since: str, lock_seconds: float
) -> tuple[LeaseRecord, list[int]]:
    domain = pin.domain
    # A pin outlives its validation; a lookup that sums every byte may have denied it meanwhile.
    pin.artifact.require_allowed()
    opened: list[int] = []
    try:
        opened.append(domain.export.open(pin.manifest_file.path, pin.manifest_file.mark))
        record, descriptor = _new_lease_file(domain, pin.key, holder, since, lock_seconds)
        opened.append(descriptor)
        opened.extend(domain.export.open(file.path, file.mark) for file in files)
    except BaseException:
        for descriptor in opened:
            os.close(descriptor)
        raise
    return record, opened


def _new_lease_file(
    domain: AgentDomain, key: str, holder: Holder, since: str, lock_seconds: float
) -> tuple[LeaseRecord, int]:
    """A lease file and its locked descriptor, opened below the export."""
    for attempt in range(_ATTEMPTS):
        record = LeaseRecord(SCHEMA_VERSION, secrets.token_hex(16), key, holder, since)
        try:
            domain.store.leases.grant(record)
            descriptor = domain.store.leases.open_locked(
                record, domain.export.visible(domain.path), seconds=lock_seconds
            )
        except FileNotFoundError:
            # A sweep took the file in the instant before it was locked.
            if attempt == _ATTEMPTS - 1:
                raise
            continue
        try:
            domain.export.require_read_only(descriptor, domain.path)
        except BaseException:
            os.close(descriptor)
            raise
        return record, descriptor
    raise AssertionError("unreachable")


def _held(domain: AgentDomain) -> list[LeaseRecord]:
    """Records that somebody holds; the files of all others are removed."""
    leases = domain.store.leases
    held = []
    for record, active in leases.scan():
        if active or not leases.remove_if_ended(record.lease_id):
            held.append(record)
        else:
            domain.records.note_use(record.key)
    for name in leases.malformed():
        leases.remove_if_ended(name.removesuffix(".json"))
    return held


def _ended(leases: list[Lease]) -> list[Lease]:
    ended = [
        lease
        for lease in leases
        if lease.domain.store.leases.remove_if_ended(lease.record.lease_id)
    ]
    for domain, key in {(lease.domain, lease.record.key) for lease in ended}:
        domain.records.note_use(key)
    return ended
