"""Which of several operators works: the holder of one Lease.

    standing by ──acquire()──► leading ──keep()──► LeadershipLost: the process ends
                                  └──release()──► nobody holds it: another takes over at once

        0        deadline          lease_seconds
        ├────────────┼──────────────────┤
        renewed      the holder stops   others may take it

The holder counts from before its renewal was sent, the others from when they saw it, so the holder
always stops first. Both count seconds of the machine's boot time, sleep included, and never compare
clocks. `holds` is asked before each write: a process that was stopped for a minute and goes on
writes nothing.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from weightlease_operator.api_errors import ApiError, Conflict, NotFound
from weightlease_operator.applying import Api
from weightlease_operator.kinds import LEASES
from weightlease_operator.settings import ElectionSettings

_log = structlog.get_logger(__name__)


class LeadershipLost(Exception):
    """Another operator leads, or may: this one must end."""


@dataclass(frozen=True, slots=True)
class _Record:
    """What the Lease says; `seconds` is how long its holder asked others to wait."""

    version: str
    holder: str = ""
    renewed: str = ""
    seconds: float = 0
    transitions: int = 0


def boot_time() -> float:
    """Seconds since the machine started, those asleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Election:
    """One candidate; `utc` is for people who read the Lease."""

    def __init__(
        self,
        api: Api,
        settings: ElectionSettings,
        identity: str,
        utc: Callable[[], datetime],
        clock: Callable[[], float] = boot_time,
    ) -> None:
        self._api, self._settings, self._identity = api, settings, identity
        self._utc, self._clock = utc, clock
        self._seen, self._seen_at = _Record(""), clock()
        self._until = clock()

    def holds(self) -> bool:
        """Whether nobody else can lead now."""
        return self._clock() < self._until

    async def acquire(self) -> None:
        """Stand by until it is ours."""
        waits = ""
        while not await self._attempt():
            if self._seen.holder != waits:
                waits = self._seen.holder
                _log.info("standing by", leader=waits)
            await self._pause(self._settings.retry_seconds)
        _log.info("leading", identity=self._identity)

    async def keep(self) -> None:
        """Renew it for as long as it is ours; raises LeadershipLost when it may not be any more."""
        while True:
            await self._pause(self._settings.renew_seconds)
            while not await self._attempt():
                if self._seen.holder not in ("", self._identity):
                    self._until = self._clock()
                    raise LeadershipLost(f"{self._seen.holder} leads")
                if not self.holds():
                    raise LeadershipLost("the Lease could not be renewed in time")
                await self._pause(self._settings.retry_seconds)

    async def release(self) -> None:
        """Let another take over at once, if it is still ours."""
        if not self.holds():
            return
        self._until = self._clock()
        try:
            async with asyncio.timeout(self._settings.retry_seconds):
                await self._write(holder="")
        except (ApiError, TimeoutError) as error:
            _log.info("the Lease was not released", error=str(error))

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds * random.uniform(0.8, 1.0))  # noqa: S311 - spreads candidates

    async def _attempt(self) -> bool:
        """Take or renew it; False when it is another's, or the API server does not answer."""
        asked = self._clock()
        try:
            async with asyncio.timeout(self._settings.deadline_seconds / 2):
                if not await self._is_free(asked):
                    return False
                await self._write(holder=self._identity)
        except Conflict:  # another candidate was faster
            return False
        except (ApiError, TimeoutError) as error:
            _log.warning("the Lease could not be read or written", error=str(error) or "too late")
            return False
        self._until = asked + self._settings.deadline_seconds
        return True

    async def _is_free(self, now: float) -> bool:
        settings = self._settings
        try:
            raw = await self._api.get(LEASES, settings.namespace, settings.name)
        except NotFound:
            metadata = {"name": settings.name, "namespace": settings.namespace}
            body = {"metadata": metadata, "spec": {}}
            raw = await self._api.create(LEASES, settings.namespace, body)
        found = _record(raw)
        if found != self._seen:
            self._seen, self._seen_at = found, now
        mine = found.holder in ("", self._identity)
        return mine or now >= self._seen_at + found.seconds

    async def _write(self, holder: str) -> None:
        settings, now = self._settings, self._utc().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: dict[str, Any] = {
            "holderIdentity": holder,
            "leaseDurationSeconds": settings.lease_seconds,
            "renewTime": now,
        }
        if holder not in ("", self._seen.holder):
            spec |= {"acquireTime": now, "leaseTransitions": self._seen.transitions + 1}
        body = {"metadata": {"resourceVersion": self._seen.version}, "spec": spec}
        raw = await self._api.patch(LEASES, settings.namespace, settings.name, body)
        self._seen, self._seen_at = _record(raw), self._clock()


def _record(raw: dict[str, Any]) -> _Record:
    spec = raw.get("spec") or {}
    return _Record(
        version=raw["metadata"]["resourceVersion"],
        holder=spec.get("holderIdentity") or "",
        renewed=spec.get("renewTime") or "",
        seconds=spec.get("leaseDurationSeconds") or 0,
        transitions=spec.get("leaseTransitions") or 0,
    )
