"""The composition root: builds every part, starts them in order, stops them in order.

Start: domains are found, leases of an earlier agent adopted and their artifacts pinned, and only
then does the socket appear. Stop: the socket goes, what was asked is answered, publications are
aborted; leases stay with their holders.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import structlog

from weightlease.errors import WeightLeaseError
from weightlease.wire import MAX_FDS_PER_FRAME
from weightlease_node_agent import __version__
from weightlease_node_agent.auth import Authenticator, TokenAuthenticator, UidAuthenticator
from weightlease_node_agent.capacity import Capacity
from weightlease_node_agent.cluster import Cluster, NodeSeen, WatchLost
from weightlease_node_agent.connection import Services
from weightlease_node_agent.domains import Domains
from weightlease_node_agent.executor import Run
from weightlease_node_agent.http import HttpServer
from weightlease_node_agent.hub import Hub
from weightlease_node_agent.leader import Leadership
from weightlease_node_agent.leases import Leases
from weightlease_node_agent.limits import Quota, Turns
from weightlease_node_agent.metrics import Metrics
from weightlease_node_agent.pins import Pins
from weightlease_node_agent.publications import Publications
from weightlease_node_agent.removal import Remover
from weightlease_node_agent.reporter import Reporter
from weightlease_node_agent.requests import Requests
from weightlease_node_agent.server import SocketServer
from weightlease_node_agent.settings import Settings
from weightlease_node_agent.survey import Publishing, Surveyor
from weightlease_node_agent.sweeper import Sweeper
from weightlease_node_agent.volumes.server import VolumeServer
from weightlease_node_agent.wanted import Wanted

log = structlog.get_logger(__name__)
_PROBES_AFTER_CLOSE_SECONDS = (0.0, 0.1, 1.0)
_LEADERSHIP_SECONDS = 1.0
_SPEC_SECONDS = 5.0
_CHECKSUM_THREADS = 2


class Agent:
    """One running agent; `cluster` is None on a bare host."""

    def __init__(self, settings: Settings, cluster: Cluster | None) -> None:
        self._settings = settings
        self._cluster = cluster
        self.metrics = Metrics(__version__, settings.node_name)
        self._wanted = Wanted(on_change=self._changed)
        self._leadership = Leadership(next(iter(settings.roots.values())))
        self._reporter: Reporter | None = None
        self._tasks: set[asyncio.Future[None]] = set()
        self.broken = asyncio.Event()
        self._spec_read = asyncio.Event()
        self._build_stores()
        self._build_publishing()
        self._build_sockets()

    def _build_stores(self) -> None:
        """What is on this node, who leases it, and what may go."""
        settings = self._settings
        self._run = Run("store", settings.limits.threads)
        exports = {storage: settings.export_of(storage) for storage in settings.roots}
        self._domains = Domains(settings.roots, exports, settings.node_name)
        # Summing every byte takes minutes; it has threads of its own, so that leases need not wait.
        self._sums = Run("checksum", _CHECKSUM_THREADS)
        self._pins = Pins(self._run, self._sums, settings.intervals.idle_pin)
        self._leases = Leases(self._pins, self._run, lambda: datetime.now(UTC), self._lease_moved)
        self._remover = Remover(self._leases, self._pins, self._run, self._changed)
        self._surveyor = Surveyor(self._domains, self._run, self._leases.of, self._publishing)
        self._sweeper = Sweeper(
            self._domains,
            self._surveyor,
            self._remover,
            self._wanted,
            settings.unmanaged,
            self._run,
            self.metrics,
        )

    def _build_publishing(self) -> None:
        """What may come, and what the API server is told."""
        settings, cluster = self._settings, self._cluster
        self._capacity = Capacity(
            settings,
            self._surveyor,
            self._domains,
            self._wanted,
            self._remover,
            self.metrics.room,
            managed=cluster is not None,
            on_change=self._changed,
        )
        self._publications = Publications(
            self._domains,
            self._pins,
            self._capacity,
            self._wanted,
            settings,
            self._run,
            self.metrics,
            self._changed,
        )
        if cluster is not None:
            self._reporter = Reporter(
                cluster,
                settings.node_name,
                self._capacity,
                self._wanted,
                settings.intervals,
                self.metrics,
                lambda: self._leadership.held,
            )

    def _build_sockets(self) -> None:
        """Where peers, drivers, probes and scrapers come in."""
        settings, limits = self._settings, self._settings.limits
        requests = Requests(
            self._domains,
            self._leases,
            self._wanted,
            self._remover,
            self._surveyor,
            self.metrics,
            self._connection_closed,
        )
        services = Services(
            settings.node_name,
            limits,
            self._authenticator(),
            requests,
            self._publications,
            Quota("connections", limits.connections, limits.connections_per_peer),
            _unread_descriptors(limits.descriptors_per_peer),
            Turns(limits.requests_per_peer),
        )
        self._hub = Hub(services, self.metrics)
        self._server = SocketServer(settings.socket, self._hub.accept)
        self._volumes = self._volume_server(services, requests)
        self._http = HttpServer(self.metrics.registry, self._problems, self._refresh)

    async def start(self) -> None:
        """Serve.

        Raises:
            WeightLeaseError, OSError: a root, an export or an address is unusable.

        """
        settings = self._settings
        await self._adopt()
        await self._run(self._domains.check)
        await self._lead()
        if self._leadership.held:
            # Before anything is written: what a killed agent left in a tmpfs is still its memory.
            await self._sweeper.sweep_leftovers()
        if self._cluster is not None:
            await self._read_spec(self._cluster)
        if self._volumes is not None:
            await self._volumes.start()
        self._server.start()
        if settings.http_port >= 0:
            port = await self._http.start(settings.http_host, settings.http_port)
            log.info("serving http", host=settings.http_host, port=port)
        self._every(settings.intervals.lease_sweep, self._sweep_leases)
        self._every(settings.intervals.artifact_sweep, self._sweep_artifacts)
        self._every(_LEADERSHIP_SECONDS, self._lead)
        if self._reporter is not None:
            self._spawn(self._reporter.run())

    async def stop(self) -> None:
        """Stop gracefully; see the module text."""
        log.info("stopping")
        self._server.stop()
        if self._volumes is not None:
            self._volumes.stop()
        await self._end_tasks()
        await self._hub.stop(self._settings.intervals.stop)
        await self._end_tasks()
        await asyncio.to_thread(self._publications.close)
        await asyncio.to_thread(self._sums.close)
        await asyncio.to_thread(self._run.close)
        self._pins.close_all()
        await self._http.stop()
        self._leadership.release()
        if self._cluster is not None:
            await self._cluster.close()

    async def _end_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- what runs beside the connections ----

    async def _adopt(self) -> None:
        """Take over domains and leases that another agent has made since the last look."""
        await self._run(self._domains.discover)
        for domain in self._domains.all():
            await self._leases.adopt(domain)

    async def _sweep_leases(self) -> None:
        await self._run(self._domains.discover)
        await self._leases.sweep(self._domains.all())

    async def _sweep_artifacts(self) -> None:
        if self._leadership.held:
            await self._sweeper.sweep()
            await self._capacity.relieve()

    async def _lead(self) -> None:
        if self._leadership.held or not await self._run(self._leadership.try_take):
            return
        self.metrics.leader.set(1)
        await self._adopt()

    async def _read_spec(self, cluster: Cluster) -> None:
        """Begin to watch; wait a little for the first answer.

        A name means nothing before. The agent that this one replaces serves until the socket is
        taken from it; and without an API server nobody can be served by name anyway.
        """
        self._spawn(self._watch(cluster))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SPEC_SECONDS):
                await self._spec_read.wait()

    async def _watch(self, cluster: Cluster) -> None:
        async for event in cluster.watch_node(self._settings.node_name):
            match event:
                case NodeSeen(node):
                    self._wanted.observe(node)
                    self._spec_read.set()
                case WatchLost(why):
                    log.warning("watch lost", error=why)
                    self._wanted.lose()
            self.metrics.spec_synced.set(self._wanted.spec.synced)

    def _every(self, seconds: float, function: Callable[[], Awaitable[None]]) -> None:
        async def repeat() -> None:
            while True:
                await asyncio.sleep(seconds)
                try:
                    await function()
                except (WeightLeaseError, OSError) as error:
                    log.warning("periodic work failed", work=function.__name__, error=str(error))

        self._spawn(repeat())

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Without this work the agent's promises are void: end, and be started again.
            log.critical("background work failed", exc_info=error)
            self.broken.set()

    # ---- parts ----

    def _volume_server(self, services: Services, requests: Requests) -> VolumeServer | None:
        if self._settings.volumes is None:
            return None
        return VolumeServer(
            self._settings.volumes,
            services,
            self._hub.accept,
            domains=self._domains,
            leases=self._leases,
            acquire=requests.lease_for_volume,
            run=self._run,
        )

    # ---- callbacks ----

    def _authenticator(self) -> Authenticator:
        settings = self._settings
        if self._cluster is None:
            return UidAuthenticator(settings.allowed_uids | {os.geteuid()}, settings.node_name)
        return TokenAuthenticator(
            self._cluster,
            settings.node_name,
            now=time.time,
            quota=Quota(
                "token reviews", settings.limits.reviews, settings.limits.reviews_per_stranger
            ),
            count=lambda review: self.metrics.reviews.labels(str(review)).inc(),
        )

    def _publishing(self) -> list[Publishing]:
        return self._publications.active()

    def _changed(self) -> None:
        if self._reporter is not None:
            self._reporter.wake()

    def _lease_moved(self, namespace: str, delta: int) -> None:
        counter = self.metrics.granted if delta > 0 else self.metrics.ended
        counter.labels(namespace).inc()
        self.metrics.active.labels(namespace).inc(delta)
        self._changed()

    def _connection_closed(self, lease_ids: list[str]) -> None:
        async def probe() -> None:
            for pause in _PROBES_AFTER_CLOSE_SECONDS:
                # A process that ends closes its socket and its leases in any order.
                await asyncio.sleep(pause)
                with contextlib.suppress(OSError):  # the next sweep asks again
                    await self._leases.probe(lease_ids)

        self._spawn(probe())

    async def _problems(self) -> list[str]:
        problems = []
        if not self._server.listening:
            problems.append(f"socket {self._settings.socket} is not ours")
        if self._volumes is not None and not self._volumes.listening:
            problems.append("the CSI driver's socket is not ours")
        if self._cluster is not None and not self._wanted.spec.synced:
            problems.append("the WeightNode's spec is not synced")
        try:
            await self._run(self._domains.check)
        except WeightLeaseError as error:
            problems.append(error.failure.message)
        return problems

    async def _refresh(self) -> None:
        try:
            view = await self._capacity.look()
        except (WeightLeaseError, OSError) as error:
            # A scrape matters most when a disk is unwell; what is counted in memory is right.
            log.warning("the stores can't be looked at", error=str(error))
            return
        self.metrics.observe(view.survey)
        self.metrics.room.observe(view.rooms)


def _unread_descriptors(per_peer: int) -> Quota:
    """Half of what this process may have open may be in flight, a quarter of that for one peer.

    The soft limit is raised first. Where the hard one is low, no peer takes the whole share.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    share = max(4 * MAX_FDS_PER_FRAME, min(hard, 1 << 20) // 2)
    return Quota("unread descriptors", share, min(per_peer, share // 4))
