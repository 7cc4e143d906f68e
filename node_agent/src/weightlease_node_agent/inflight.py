"""Descriptors that a peer has been sent and has not read yet.

The kernel charges them to the agent's uid, for all peers together (ETOOMANYREFS), so a frame with
descriptors goes out only when the one before has been read, each account has a share, and a peer
that does not read within its deadline is dropped, which closes what is queued for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from weightlease_node_agent.channel import Channel, unread_bytes
from weightlease_node_agent.limits import Quota

_FIRST_CHECK_SECONDS = 0.02
_LAST_CHECK_SECONDS = 0.2


class InFlight:
    """The share of one connection; `on_stalled` is called when its peer does not read."""

    def __init__(
        self, channel: Channel, quota: Quota, seconds: float, on_stalled: Callable[[], None]
    ) -> None:
        self._channel = channel
        self._quota = quota
        self._seconds = seconds
        self._on_stalled = on_stalled
        self._loop = asyncio.get_running_loop()
        self._account = ""
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    async def reserve(self, account: str, count: int) -> None:
        """Wait until the last frame has been read, then take a share of `count`.

        Raises:
            PeerLostError: the peer does not read.
            WeightLeaseError: too_many_requests, its account's other connections do not.

        """
        await self._channel.drained(self._seconds)
        self.close()
        self._quota.take(account, count)
        self._account, self._count = account, count

    def watch(self) -> None:
        """Look from time to time whether what was sent has been read."""
        self._arm(self._loop.time() + self._seconds, _FIRST_CHECK_SECONDS)

    def close(self) -> None:
        """Give the share back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._count:
            self._quota.give(self._account, self._count)
            self._count = 0

    def _arm(self, deadline: float, pause: float) -> None:
        self._timer = self._loop.call_later(pause, self._check, deadline, pause)

    def _check(self, deadline: float, pause: float) -> None:
        if not unread_bytes(self._channel.socket):
            self.close()
        elif self._loop.time() >= deadline:
            self._on_stalled()
        else:
            self._arm(deadline, min(pause * 2, _LAST_CHECK_SECONDS))
