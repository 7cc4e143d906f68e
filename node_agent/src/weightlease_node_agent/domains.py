"""The agent's domains: one store per namespace and storage class.

    <root of the class>/<namespace>/     a Host Weight Runtime v1 domain, made on demand

A folder below a root that is no domain of ours (another name, a link) is left alone.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path

import structlog

from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.names import StorageClass
from weightlease.policy import DomainPolicy
from weightlease.store.layout import DOMAIN_FILE
from weightlease.store.local import LocalStore
from weightlease_node_agent.exports import Export
from weightlease_node_agent.records import Records

log = structlog.get_logger(__name__)
_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class Place:
    """Which domain: hashable, without touching a disk."""

    namespace: str
    storage_class: StorageClass


@dataclass(frozen=True, eq=False)
class AgentDomain:
    """One open domain; its methods block."""

    place: Place
    path: Path
    store: LocalStore
    records: Records
    export: Export


class Domains:
    """Opens domains; safe to use from any thread."""

    def __init__(
        self, roots: dict[StorageClass, Path], exports: dict[StorageClass, Path | None], node: str
    ) -> None:
        self._exports = {
            # Resolved, as the store resolves its own root: paths below it are compared as text.
            storage: Export(Path(os.path.realpath(root)), exports.get(storage))
            for storage, root in roots.items()
        }
        self._node = node
        self._open: dict[Place, AgentDomain] = {}
        self._unusable: set[Path] = set()
        self._lock = threading.Lock()

    @property
    def roots(self) -> dict[StorageClass, Path]:
        """The root of each class in use."""
        return {storage: export.root for storage, export in self._exports.items()}

    def check(self) -> None:
        """Raises domain_unavailable unless every root is there and every export read-only."""
        for export in self._exports.values():
            if not export.root.is_dir():
                raise WeightLeaseError.of(
                    Stage.DOMAIN,
                    FailureCode.DOMAIN_UNAVAILABLE,
                    f"root {export.root} is gone; make it again and restart the agent",
                    retryable=True,
                )
            export.check()

    def all(self) -> list[AgentDomain]:
        """Every open domain."""
        return list(self._open.values())

    def get(self, place: Place) -> AgentDomain | None:
        """A domain that is open already."""
        return self._open.get(place)

    def of_namespace(self, namespace: str) -> list[AgentDomain]:
        """The open domains of one namespace, the quicker class first."""
        places = (Place(namespace, storage) for storage in (StorageClass.MEMORY, StorageClass.DISK))
        return [self._open[place] for place in places if place in self._open]

    def open(self, place: Place) -> AgentDomain:
        """A domain, made if there is none. Blocks.

        Raises:
            WeightLeaseError: storage_class_mismatch for a class that this node lacks, or whatever
                the store finds wrong with the place.

        """
        with self._lock:
            domain = self._open.get(place)
            if domain is None:
                domain = self._open_one(place)
                self._open[place] = domain
            return domain

    def discover(self) -> None:
        """Open every domain that exists and is not open yet. Blocks."""
        for storage, export in self._exports.items():
            export.root.mkdir(mode=0o755, parents=True, exist_ok=True)
            for path in sorted(export.root.iterdir()):
                if path.is_symlink() or not (path / DOMAIN_FILE).is_file():
                    continue
                try:
                    self.open(Place(path.name, storage))
                except WeightLeaseError as error:
                    if path not in self._unusable:
                        log.warning("domain is unusable", path=str(path), failure=str(error))
                    self._unusable.add(path)

    def _open_one(self, place: Place) -> AgentDomain:
        export = self._exports.get(place.storage_class)
        if export is None:
            raise WeightLeaseError.of(
                Stage.DOMAIN,
                FailureCode.STORAGE_CLASS_MISMATCH,
                f"this node has no root of storage class {place.storage_class}; "
                f"it has {', '.join(self._exports)}",
            )
        if _NAMESPACE.fullmatch(place.namespace) is None:
            raise WeightLeaseError.of(
                Stage.DOMAIN,
                FailureCode.INVALID_CONFIG,
                f"namespace {place.namespace[:63]!r} is not a DNS label",
            )
        path = export.root / place.namespace
        policy = DomainPolicy(storage_class=place.storage_class, domain_id=self._node)
        store = LocalStore(path, policy)
        return AgentDomain(place, path, store, Records(path), export)
