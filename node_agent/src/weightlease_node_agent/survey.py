"""What the agent's domains hold at one instant; looking blocks, so it runs on threads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import structlog

from weightlease.errors import ManifestError, WeightLeaseError
from weightlease.filesystem import filesystem_type
from weightlease.lease_record import LeaseRecord
from weightlease.manifest import PAYLOAD_SUFFIX, READY_FILE, parse_ready
from weightlease.names import StorageClass
from weightlease.reports import InventoryEntry, InventoryState
from weightlease_node_agent.domains import AgentDomain, Domains, Place
from weightlease_node_agent.executor import Run
from weightlease_node_agent.node_memory import available_memory

log = structlog.get_logger(__name__)
_MAX_READY_BYTES = 64 * 1024


@dataclass(frozen=True)
class Found:
    """One entry of a domain; sizes in bytes, `made_for` pairs spec entry ids with generations.

    `denied` artifacts are there and not to be leased. `last_used` (seconds since the epoch) is when
    the last lease ended, or the artifact was published.
    """

    place: Place
    key: str
    state: InventoryState
    storage_name: str
    size_bytes: int
    reason: str = ""
    payload_bytes: int = 0
    manifest_sha256: str = ""
    denied: bool = False
    made_for: tuple[tuple[str, int], ...] = ()
    leases: tuple[LeaseRecord, ...] = ()
    last_used: float = 0.0


@dataclass(frozen=True)
class Publishing:
    """A publication that streams now, in bytes."""

    place: Place
    key: str
    entry_id: str
    total_bytes: int
    done_bytes: int


@dataclass(frozen=True)
class Root:
    """The filesystem of one storage class; sizes in bytes, no inodes where it counts none.

    `memory_bytes` is what the node's memory still has for it, None for disk.
    """

    storage_class: StorageClass
    path: str
    filesystem: str
    capacity_bytes: int
    free_bytes: int
    inodes: int = 0
    free_inodes: int = 0
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Survey:
    """Everything at one instant; `domains` gives each domain's uuid, `store_bytes` its size.

    A domain that could not be looked at is not among `domains`: nothing is known of it.
    """

    found: tuple[Found, ...] = ()
    publishing: tuple[Publishing, ...] = ()
    roots: tuple[Root, ...] = ()
    domains: tuple[tuple[Place, str], ...] = ()
    store_bytes: tuple[tuple[Place, int], ...] = ()


class Surveyor:
    """Looks at domains."""

    def __init__(
        self,
        domains: Domains,
        run: Run,
        leases_of: Callable[[AgentDomain, str], list[LeaseRecord]],
        publishing: Callable[[], list[Publishing]],
    ) -> None:
        self._domains = domains
        self._run = run
        self._leases_of = leases_of
        self._publishing = publishing
        # Peers may ask as often as they like; one look at a time takes one thread.
        self._one = asyncio.Lock()

    async def look(self, domains: Iterable[AgentDomain] | None = None) -> Survey:
        """The state of some domains, or of all that can be looked at.

        Raises:
            WeightLeaseError: domain_unavailable, for one of `domains`.
            OSError: a root can't be looked at.

        """
        chosen = self._domains.all() if domains is None else list(domains)
        found: list[Found] = []
        uuids: list[tuple[Place, str]] = []
        sizes: list[tuple[Place, int]] = []
        for domain in chosen:
            try:
                async with self._one:
                    uuid, size, entries = await self._run(look_at, domain)
            except WeightLeaseError as error:
                if domains is not None:
                    raise
                # One tenant's broken store must not keep the others' from being seen.
                log.warning("domain can't be looked at", path=str(domain.path), error=str(error))
                continue
            uuids.append((domain.place, uuid))
            sizes.append((domain.place, size))
            found.extend(self._with_leases(domain, entries))
        places = {domain.place for domain in chosen}
        publishing = [each for each in self._publishing() if each.place in places]
        roots = await self._run(look_at_roots, self._domains)
        return Survey(tuple(found), tuple(publishing), tuple(roots), tuple(uuids), tuple(sizes))

    def _with_leases(self, domain: AgentDomain, entries: list[Found]) -> Iterable[Found]:
        for entry in entries:
            if entry.state is InventoryState.READY:
                yield replace(entry, leases=tuple(self._leases_of(domain, entry.key)))
            else:
                yield entry


def look_at(domain: AgentDomain) -> tuple[str, int, list[Found]]:
    """A domain's uuid, size in bytes and entries. Blocks."""
    inspection = domain.store.inspect()
    denied = {
        entry.artifact_key: entry.reason
        for entry in inspection.inventory
        if entry.state is InventoryState.DENIED
    }
    found = [_found(domain, entry, denied) for entry in inspection.inventory]
    return inspection.domain_uuid, inspection.store_bytes, found


def look_at_roots(domains: Domains) -> list[Root]:
    """The filesystem of every root. Blocks."""
    found = []
    for storage_class, path in domains.roots.items():
        state = os.statvfs(path)
        found.append(
            Root(
                storage_class,
                str(path),
                filesystem_type(str(path)),
                state.f_blocks * state.f_frsize,
                state.f_bavail * state.f_frsize,
                state.f_files,
                state.f_favail,
                available_memory() if storage_class is StorageClass.MEMORY else None,
            )
        )
    return found


def _found(domain: AgentDomain, entry: InventoryEntry, denied: dict[str, str]) -> Found:
    plain = Found(
        domain.place,
        entry.artifact_key,
        entry.state,
        entry.storage_name,
        entry.size_bytes,
        entry.reason,
    )
    if entry.state is not InventoryState.READY:
        return plain
    payload_bytes, manifest_sha256, published = _facts(domain, entry.artifact_key)
    made_for = tuple(sorted(domain.records.of(entry.artifact_key).items()))
    return replace(
        plain,
        reason=entry.reason or denied.get(entry.artifact_key, ""),
        payload_bytes=payload_bytes,
        manifest_sha256=manifest_sha256,
        denied=bool(entry.reason) or entry.artifact_key in denied,
        made_for=made_for,
        last_used=max(published, domain.records.last_use(entry.artifact_key)),
    )


def _facts(domain: AgentDomain, key: str) -> tuple[int, str, float]:
    """Payload bytes, manifest digest, time of publication; nothing once the artifact is gone."""
    folder = domain.path / "artifacts" / key
    try:
        with os.scandir(folder) as entries:
            size = sum(
                entry.stat(follow_symlinks=False).st_size
                for entry in entries
                if entry.name.endswith(PAYLOAD_SUFFIX)
            )
        with open(folder / READY_FILE, "rb") as file:
            digest = parse_ready(file.read(_MAX_READY_BYTES)).manifest_sha256
            return size, digest, os.fstat(file.fileno()).st_mtime
    except (OSError, ManifestError, WeightLeaseError):
        return 0, "", 0.0
