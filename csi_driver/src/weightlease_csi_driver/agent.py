"""Asking the node agent: the library's own client at the driver's socket, one connection a call."""

from __future__ import annotations

from contextlib import closing
from typing import Protocol

from weightlease.client.connection import Connection
from weightlease.client.settings import ClientSettings
from weightlease.names import AGENT_UID
from weightlease.wire import (
    Empty,
    ListedVolume,
    ListVolumesResult,
    PublishVolumeParams,
    PublishVolumeResult,
    UnpublishVolumeParams,
)

# Below the two minutes that a kubelet waits for us.
_SECONDS = 60.0


class Agent(Protocol):
    """What the driver needs of the agent; every method raises WeightLeaseError."""

    def publish(self, params: PublishVolumeParams) -> PublishVolumeResult:
        """Make a volume."""

    def unpublish(self, volume_id: str) -> None:
        """End one."""

    def volumes(self) -> tuple[ListedVolume, ...]:
        """All of them."""


class SocketAgent:
    """The agent behind a socket; who listens there must be the agent's uid or root."""

    def __init__(self, path: str) -> None:
        self._settings = ClientSettings(
            path, timeout=_SECONDS, trusted_uids=frozenset({AGENT_UID, 0})
        )

    def publish(self, params: PublishVolumeParams) -> PublishVolumeResult:
        with self._connected() as connection:
            result, _ = connection.request("publish_volume", params, PublishVolumeResult, _SECONDS)
            return result

    def unpublish(self, volume_id: str) -> None:
        with self._connected() as connection:
            params = UnpublishVolumeParams(volume_id)
            connection.request("unpublish_volume", params, Empty, _SECONDS)

    def volumes(self) -> tuple[ListedVolume, ...]:
        with self._connected() as connection:
            result, _ = connection.request("list_volumes", Empty(), ListVolumesResult, _SECONDS)
            return result.volumes

    def _connected(self) -> closing[Connection]:
        return closing(Connection.establish(self._settings))
