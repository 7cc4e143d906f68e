"""What the CSI driver may ask for, and nothing else."""

from __future__ import annotations

from typing import Any

from weightlease.errors import WeightLeaseError
from weightlease.filesystem import storage_failure
from weightlease.wire import (
    VOLUME_METHODS,
    Empty,
    PublishVolumeParams,
    UnpublishVolumeParams,
)
from weightlease_node_agent.peers import Peer
from weightlease_node_agent.requests import Answer
from weightlease_node_agent.volumes.service import Volumes


class VolumeRequests:
    """Answers requests at the driver's socket."""

    methods = VOLUME_METHODS

    def __init__(self, volumes: Volumes) -> None:
        self._volumes = volumes

    async def answer(self, peer: Peer, method: str, params: Any) -> Answer:
        """The answer to one request.

        Raises:
            WeightLeaseError: what the driver is told instead.

        """
        del peer
        try:
            match params:
                case PublishVolumeParams():
                    return Answer(await self._volumes.publish(params))
                case UnpublishVolumeParams():
                    await self._volumes.unpublish(params.volume_id)
                    return Answer(Empty())
                case _:
                    return Answer(self._volumes.list())
        except OSError as error:
            raise WeightLeaseError(storage_failure(error, f"{method} failed")) from error

    def connection_closed(self, lease_ids: list[str]) -> None:
        """The driver is given no leases of its own."""
