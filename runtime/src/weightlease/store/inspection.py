"""What a domain holds at one instant; changes nothing."""

from __future__ import annotations

import os

from weightlease import filesystem
from weightlease.identity import is_key
from weightlease.reports import DomainInspection, InventoryEntry, InventoryState
from weightlease.store.containment import is_invalidated, read_denial
from weightlease.store.domain import Domain

KEY_LENGTH = 64


def inspect(domain: Domain) -> DomainInspection:
    """Walk the domain. Assets count with their artifact.

    Raises:
        OSError: a directory of the store cannot be read.

    """
    paths = domain.paths
    inventory = [
        *_entries(domain, InventoryState.READY, paths.artifacts),
        *_entries(domain, InventoryState.DENIED, paths.deny),
        *_entries(domain, InventoryState.QUARANTINED, paths.quarantine),
        *_entries(domain, InventoryState.TEMPORARY, paths.staging),
    ]
    inventory.sort(key=lambda entry: (entry.artifact_key, entry.state, entry.storage_name))
    state = os.statvfs(paths.root)
    return DomainInspection(
        domain_uuid=domain.uuid,
        scope=domain.record.scope,
        domain_id=domain.record.domain_id,
        storage_class=str(domain.policy.storage_class),
        filesystem_type=domain.record.filesystem_type,
        store_bytes=filesystem.tree_bytes(paths.root),
        filesystem_free_bytes=state.f_bavail * state.f_frsize,
        inventory=tuple(inventory),
    )


def _entries(domain: Domain, state: InventoryState, directory: str) -> list[InventoryEntry]:
    found = []
    for name in os.listdir(directory):
        key = name[:KEY_LENGTH]
        if not is_key(key):
            continue
        path = f"{directory}/{name}"
        size = filesystem.tree_bytes(path)
        reason = ""
        if state is InventoryState.READY:
            size += filesystem.tree_bytes(domain.paths.asset_tree(key))
            reason = _invalidation(path)
        elif state is InventoryState.DENIED:
            reason = read_denial(path)
        elif state is InventoryState.QUARANTINED:
            reason = name[KEY_LENGTH + 1 :].partition(".")[0]
        found.append(InventoryEntry(key, state, name, size, reason))
    return found


def _invalidation(path: str) -> str:
    try:
        return "invalidated" if is_invalidated(os.lstat(path)) else ""
    except FileNotFoundError:
        return ""
