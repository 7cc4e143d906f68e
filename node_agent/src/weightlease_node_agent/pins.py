"""Pins: artifacts that the agent keeps open, and so locked, while anybody leases them.

A pin is validated once and then trusted for as long as its shared lock is held and its manifest is
still the same inode. It lingers a little after its last lease, so that the next one is quick; a
cleanup through the agent ends that at once.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from weightlease.manifest import Manifest, ReadyMarker
from weightlease.policy import Validation
from weightlease.store.artifact import OpenArtifact
from weightlease_node_agent.domains import AgentDomain
from weightlease_node_agent.executor import Run
from weightlease_node_agent.exports import FileMark
from weightlease_node_agent.wanted import missing

_LOCK_SECONDS = 30.0


@dataclass(frozen=True)
class MarkedFile:
    """A validated file: where it lies and which inode it is."""

    path: Path
    mark: FileMark

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> MarkedFile:
        return cls(Path(path), FileMark.of(os.lstat(path)))

    @property
    def unchanged(self) -> bool:
        """Whether the path still leads to it."""
        try:
            return FileMark.of(os.lstat(self.path)) == self.mark
        except OSError:
            return False


@dataclass(eq=False)
class Pin:
    """One open artifact; `users` counts leases and requests that are using it."""

    domain: AgentDomain
    artifact: OpenArtifact
    manifest_file: MarkedFile
    payloads: tuple[MarkedFile, ...]
    assets: tuple[MarkedFile, ...]
    checksummed: bool = False
    users: int = 0
    idle_since: float = field(default_factory=time.monotonic)

    @property
    def key(self) -> str:
        return self.manifest.artifact_key

    @property
    def manifest(self) -> Manifest:
        return self.artifact.manifest

    @property
    def ready(self) -> ReadyMarker:
        return self.artifact.ready


class Pins:
    """Opens artifacts at most once at a time and closes them when nobody uses them."""

    def __init__(self, run: Run, linger_seconds: float) -> None:
        self._run = run
        self._linger = linger_seconds
        self._pins: dict[tuple[AgentDomain, str], Pin] = {}
        self._opening = KeyedLocks()
        self._checksummed: dict[tuple[AgentDomain, str], str] = {}

    def __iter__(self) -> Iterator[Pin]:
        return iter(list(self._pins.values()))

    @asynccontextmanager
    async def use(
        self, domain: AgentDomain, key: str, validation: Validation
    ) -> AsyncIterator[Pin]:
        """A pin that stays while the block runs.

        Raises:
            WeightLeaseError: local_miss, or what validation found.

        """
        pin = await self.hold(domain, key, validation)
        try:
            yield pin
        finally:
            self.let_go(pin)

    async def hold(self, domain: AgentDomain, key: str, validation: Validation) -> Pin:
        """Like `use`, until `let_go`."""
        full = validation is Validation.FULL_CHECKSUM
        async with self._opening.hold((domain, key)):
            pin = self._pins.get((domain, key))
            if pin is not None and not pin.manifest_file.unchanged:
                self._close(pin)
                pin = None
            if pin is None or (full and not pin.checksummed):
                fresh = await self._run(self._open, domain, key, validation)
                if pin is None:
                    pin = self._pins[domain, key] = fresh
                else:
                    pin.checksummed = fresh.checksummed
                    fresh.artifact.close()
            pin.users += 1
            return pin

    def let_go(self, pin: Pin) -> None:
        """End one use."""
        pin.users -= 1
        pin.idle_since = time.monotonic()

    def close_idle(self, *, at_once: Callable[[Pin], bool] = lambda _: False) -> None:
        """Close pins without users that have lingered long enough, or that `at_once` names."""
        now = time.monotonic()
        for pin in self:
            if not pin.users and (at_once(pin) or now - pin.idle_since >= self._linger):
                self._close(pin)

    def close_all(self) -> None:
        """Close every pin; lease files keep what they keep."""
        for pin in self:
            self._close(pin)

    def _open(self, domain: AgentDomain, key: str, validation: Validation) -> Pin:
        # A lock leaves its file behind, so a key that any peer can make up is not locked.
        if not os.path.lexists(domain.path / "artifacts" / key):
            raise missing(f"there is no artifact {key} in this store")
        full = validation is Validation.FULL_CHECKSUM
        known = self._checksummed.get((domain, key), "")
        cheap = Validation.MANIFEST_AND_METADATA if full and known else validation
        artifact = domain.store.open_artifact(key, validation=cheap, timeout=_LOCK_SECONDS)
        publication = artifact.ready.publication_id
        if full and known and known != publication:
            # Another publication took the key's place since its bytes were summed.
            artifact.close()
            artifact = domain.store.open_artifact(key, validation=validation, timeout=_LOCK_SECONDS)
            publication = artifact.ready.publication_id
        if full:
            self._checksummed[domain, key] = publication
        return _pin_of(domain, artifact, checksummed=full or known == publication)

    def _close(self, pin: Pin) -> None:
        self._pins.pop((pin.domain, pin.key), None)
        pin.artifact.close()


class KeyedLocks:
    """A lock per key that exists only while somebody wants it: keys come from peers."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, key: Hashable) -> AsyncIterator[None]:
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            _, users = self._locks[key]
            if users > 1:
                self._locks[key] = (lock, users - 1)
            else:
                del self._locks[key]


def _pin_of(domain: AgentDomain, artifact: OpenArtifact, *, checksummed: bool) -> Pin:
    manifest = artifact.manifest
    try:
        return Pin(
            domain,
            artifact,
            MarkedFile.at(artifact.manifest_path()),
            tuple(MarkedFile.at(artifact.payload_path(file.file_name)) for file in manifest.files),
            tuple(MarkedFile.at(artifact.asset_path(asset.path)) for asset in manifest.assets),
            checksummed,
        )
    except BaseException:
        artifact.close()
        raise
