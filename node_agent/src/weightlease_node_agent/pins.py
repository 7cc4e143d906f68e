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

    def __init__(self, run: Run, sums: Run, linger_seconds: float) -> None:
        self._run = run
        self._sums = sums
        self._linger = linger_seconds
        self._pins: dict[tuple[AgentDomain, str], Pin] = {}
        self._opening = KeyedLocks()
        self._summing = KeyedLocks()
        self._summed: dict[tuple[AgentDomain, str], str] = {}

    def __iter__(self) -> Iterator[Pin]:
        return iter(list(self._pins.values()))

    async def hold(self, domain: AgentDomain, key: str, validation: Validation) -> Pin:
        """A pin that stays until `let_go`.

        Raises:
            WeightLeaseError: local_miss, or what validation found.

        """
        pin = self._use(domain, key)
        if pin is None:
            async with self._opening.hold((domain, key)):
                pin = self._use(domain, key)
                if pin is None:
                    pin = self._pins[domain, key] = await self._run(_open, domain, key)
                    pin.users += 1
        try:
            if validation is Validation.FULL_CHECKSUM:
                await self._sum(pin)
        except BaseException:
            self.let_go(pin)
            raise
        return pin

    def _use(self, domain: AgentDomain, key: str) -> Pin | None:
        """The pin that is open already, with one use more."""
        pin = self._pins.get((domain, key))
        if pin is None:
            return None
        if not pin.manifest_file.unchanged:
            self._retire(pin)
            return None
        pin.users += 1
        return pin

    async def _sum(self, pin: Pin) -> None:
        """Read every byte, unless this agent has; others lease the artifact meanwhile."""
        async with self._summing.hold((pin.domain, pin.key)):
            if self._summed.get((pin.domain, pin.key)) != pin.ready.publication_id:
                await self._sums(pin.domain.store.verify, pin.key, timeout=_LOCK_SECONDS)
                self._summed[pin.domain, pin.key] = pin.ready.publication_id

    def let_go(self, pin: Pin) -> None:
        """End one use."""
        pin.users -= 1
        pin.idle_since = time.monotonic()
        if self._pins.get((pin.domain, pin.key)) is not pin and not pin.users:
            pin.artifact.close()

    def close_idle(self, *, at_once: Callable[[Pin], bool] = lambda _: False) -> None:
        """Close pins without users that have lingered long enough, or that `at_once` names."""
        now = time.monotonic()
        for pin in self:
            if not pin.users and (at_once(pin) or now - pin.idle_since >= self._linger):
                self._retire(pin)

    def close_all(self) -> None:
        """Close every pin; lease files keep what they keep."""
        for pin in self:
            del self._pins[pin.domain, pin.key]
            pin.artifact.close()

    def _retire(self, pin: Pin) -> None:
        """Give it to nobody any more; it closes with its last user."""
        del self._pins[pin.domain, pin.key]
        if not pin.users:
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


def _open(domain: AgentDomain, key: str) -> Pin:
    # A lock leaves its file behind, so a key that any peer can make up is not locked.
    if not os.path.lexists(domain.path / "artifacts" / key):
        raise missing(f"there is no artifact {key} in this store")
    artifact = domain.store.open_artifact(key, timeout=_LOCK_SECONDS)
    manifest = artifact.manifest
    try:
        return Pin(
            domain,
            artifact,
            MarkedFile.at(artifact.manifest_path()),
            tuple(MarkedFile.at(artifact.payload_path(file.file_name)) for file in manifest.files),
            tuple(MarkedFile.at(artifact.asset_path(asset.path)) for asset in manifest.assets),
        )
    except BaseException:
        artifact.close()
        raise
