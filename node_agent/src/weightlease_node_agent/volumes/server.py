"""The sockets of volumes: one for the CSI driver, one in each volume for its pod."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from weightlease_node_agent.connection import Services
from weightlease_node_agent.domains import Domains
from weightlease_node_agent.executor import Run
from weightlease_node_agent.leases import Leases
from weightlease_node_agent.peers import Peer
from weightlease_node_agent.server import SocketServer
from weightlease_node_agent.volumes.directory import VolumeDirectory
from weightlease_node_agent.volumes.requests import VolumeRequests
from weightlease_node_agent.volumes.service import Acquire, Volumes
from weightlease_node_agent.volumes.sockets import DriverSocket, PodSocket

DRIVER_SOCKET = "driver.sock"
_ROOT = frozenset({0})

Accept = Callable[[socket.socket, Services], None]


class VolumeServer:
    """Serves volumes below `root`; `accept` takes over each connection with its services."""

    def __init__(
        self,
        root: Path,
        services: Services,
        accept: Accept,
        *,
        domains: Domains,
        leases: Leases,
        acquire: Acquire,
        run: Run,
    ) -> None:
        self._services = services
        self._accept = accept
        self._volumes = Volumes(
            VolumeDirectory(root),
            services.node,
            domains,
            leases,
            run,
            listen=self._listen,
            acquire=acquire,
        )
        self._driver = SocketServer(root / DRIVER_SOCKET, self._accept_driver)

    @property
    def listening(self) -> bool:
        """Whether the driver finds this agent."""
        return self._driver.listening

    async def start(self) -> None:
        """Serve earlier volumes, then the driver.

        Raises:
            OSError: the directory is unusable.

        """
        await self._volumes.start()
        self._driver.start()

    def stop(self) -> None:
        """Close every socket; volumes and their leases stay."""
        self._driver.stop()
        self._volumes.stop()

    def _listen(self, path: Path, peer: Peer) -> SocketServer:
        services = replace(self._services, authenticator=PodSocket(peer))
        return SocketServer(path, lambda accepted: self._accept(accepted, services))

    def _accept_driver(self, accepted: socket.socket) -> None:
        services = replace(
            self._services,
            authenticator=DriverSocket(_ROOT, self._services.node),
            requests=VolumeRequests(self._volumes),
        )
        self._accept(accepted, services)
