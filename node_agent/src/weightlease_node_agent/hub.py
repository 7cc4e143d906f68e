"""All connections of an agent: admission, tasks, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import structlog

from weightlease.unix_socket import credentials_of
from weightlease_node_agent.channel import Drop
from weightlease_node_agent.connection import Connection, Services
from weightlease_node_agent.limits import Strangers
from weightlease_node_agent.metrics import Metrics

log = structlog.get_logger(__name__)
_END_SECONDS = 5.0


class Hub:
    """Serves each accepted connection in a task of its own."""

    def __init__(self, services: Services, metrics: Metrics) -> None:
        self._services = services
        self._metrics = metrics
        self._strangers = Strangers(services.limits.strangers)
        self._tasks: dict[asyncio.Task[None], Connection] = {}

    def accept(self, accepted: socket.socket, services: Services | None = None) -> None:
        """Take over a socket; `services` of the place where it connected, if that has its own."""
        try:
            credentials = credentials_of(accepted)
        except OSError:
            accepted.close()
            return
        connection = Connection(
            accepted, credentials, services or self._services, self._no_stranger
        )
        origin = f"uid {credentials.uid} pid {credentials.pid}"
        self._strangers.add(connection, origin, lambda: connection.end(Drop.CAPACITY))
        task = asyncio.create_task(self._serve(connection))
        self._tasks[task] = connection
        task.add_done_callback(self._done)
        self._metrics.connections.set(len(self._tasks))

    async def stop(self, seconds: float) -> None:
        """Answer what has been asked, then end every connection; publications are aborted."""
        for connection in self._tasks.values():
            with contextlib.suppress(OSError):
                connection.channel.socket.shutdown(socket.SHUT_RD)
        await self._wait(seconds)
        for connection in list(self._tasks.values()):
            connection.end(Drop.STOPPING)
        await self._wait(_END_SECONDS)

    async def _wait(self, seconds: float) -> None:
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=seconds)

    async def _serve(self, connection: Connection) -> None:
        reason = await connection.serve()
        self._strangers.remove(connection)
        if reason is not None:
            self._metrics.dropped.labels(str(reason)).inc()

    def _no_stranger(self, connection: Connection) -> None:
        self._strangers.remove(connection)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        self._metrics.connections.set(len(self._tasks))
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("connection task failed", error=repr(error))
