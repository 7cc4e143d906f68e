"""The composition root: every part is made here, and started and stopped in order.

serve /healthz → win the election → list everything → work the queues → watch. A first whole list
comes before any decision: an entry that is dropped because its artifact was not yet known would
cost its bytes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import kopf
import structlog
from prometheus_client import CollectorRegistry

from weightlease.names import MANAGED_BY_OPERATOR
from weightlease_operator import handlers
from weightlease_operator.api_errors import ApiError
from weightlease_operator.applying import Applier
from weightlease_operator.cache import Key
from weightlease_operator.election import Election
from weightlease_operator.failpoint import Failpoint
from weightlease_operator.fleet import Fleet
from weightlease_operator.gateway import Gateway, connect
from weightlease_operator.intake import Intake
from weightlease_operator.kinds import JOBS, PODS, WATCHED
from weightlease_operator.metrics import Metrics
from weightlease_operator.reconciler import Reconciler
from weightlease_operator.recorder import EventRecorder
from weightlease_operator.server import application, serving
from weightlease_operator.settings import Settings
from weightlease_operator.workqueue import WorkQueue

K = TypeVar("K")
_log = structlog.get_logger(__name__)
# a round that takes this many intervals is a loop that hangs
_LATE_ROUNDS = 3


def utc_now() -> datetime:
    return datetime.now(UTC)


class Operator:
    """All parts of one operator."""

    def __init__(self, gateway: Gateway, settings: Settings, metrics: Metrics) -> None:
        self._gateway, self._settings, self._metrics = gateway, settings, metrics
        self._leads = False
        self._round_began: float | None = None
        self._synced = False
        self.fleet = Fleet()
        recorder = EventRecorder(gateway, utc_now, socket.gethostname())
        applier = Applier(gateway, self.fleet, recorder, settings.jobs, metrics)
        reconciler = Reconciler(gateway, self.fleet, applier, settings.plan, utc_now)
        self.artifacts: WorkQueue[Key] = self._queue("artifacts", reconciler.artifact)
        self.nodes: WorkQueue[str] = self._queue("nodes", reconciler.node)
        self.intake = Intake(
            self.fleet,
            wake_artifact=self.artifacts.add,
            wake_node=self.nodes.add,
            clock=utc_now,
            grace=timedelta(seconds=settings.plan.agent_grace_seconds),
        )

    def _queue(self, name: str, handler: Callable[[K], Awaitable[float | None]]) -> WorkQueue[K]:
        settings = self._settings
        return WorkQueue(
            name,
            handler,
            self._metrics,
            workers=settings.workers,
            batch=settings.batch_seconds,
            base=settings.requeue_base_seconds,
            cap=settings.requeue_cap_seconds,
        )

    async def run(self) -> None:
        """Run until stopped by a signal; raises what made it fail."""
        app = application(
            self._metrics,
            refresh=self._count_conditions,
            alive=self._is_alive,
            # A standby that is not ready would stop every rolling update.
            ready=lambda: self._synced or not self._leads,
        )
        async with serving(app, self._settings.bind_address, self._settings.metrics_port) as port:
            _log.info("serving", port=port)
            if self._settings.election.namespace:
                await self._lead_when_elected()
            else:
                await self._lead()

    async def _lead_when_elected(self) -> None:
        settings = self._settings.election
        identity = settings.identity or socket.gethostname()
        election = Election(self._gateway, settings, identity, utc_now)
        self._gateway.may_write = election.holds
        try:
            await election.acquire()
            keeper = asyncio.create_task(election.keep())
            keeper.add_done_callback(end_process)
            try:
                await self._lead()
            finally:
                keeper.remove_done_callback(end_process)
                keeper.cancel()
        finally:
            await election.release()

    async def _lead(self) -> None:
        self._leads = True
        self._metrics.leading.set(1)
        await self._first_round()
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(part)
                for part in (self.artifacts.run(), self.nodes.run(), self._rounds())
            ]
            self.intake.everything()
            await self._watch()
            for task in tasks:
                task.cancel()

    async def _first_round(self) -> None:
        wait = self._settings.requeue_base_seconds
        while True:
            try:
                await self._round()
            except ApiError as error:
                _log.warning("the first list failed", error=str(error), retry_seconds=wait)
                await asyncio.sleep(wait)
                wait = min(2 * wait, self._settings.requeue_cap_seconds)
            else:
                self._synced = True
                return

    async def _rounds(self) -> None:
        while True:
            await asyncio.sleep(self._settings.resync_seconds)
            try:
                await self._round()
            except ApiError as error:
                _log.warning("a list failed", error=str(error))
            else:
                self.intake.everything()

    async def _round(self) -> None:
        self._round_began = asyncio.get_running_loop().time()
        for kind in WATCHED:
            raws, version = await self._gateway.list(kind)
            self.intake.listed(kind, raws, version)
        self._metrics.last_resync.set_to_current_time()

    def _count_conditions(self) -> None:
        counts = Counter(
            (condition.type, condition.status.value)
            for _, artifact in self.fleet.artifacts.items()
            for condition in artifact.status.conditions
        )
        self._metrics.artifacts.clear()
        for (condition, status), count in counts.items():
            self._metrics.artifacts.labels(condition=condition, status=status).set(count)

    def _is_alive(self) -> bool:
        if self._round_began is None:
            return True
        age = asyncio.get_running_loop().time() - self._round_began
        return age < _LATE_ROUNDS * self._settings.resync_seconds

    async def _watch(self) -> None:
        registry = kopf.OperatorRegistry()
        handlers.register(registry, self.intake)
        # Left to itself kopf asks the password file for a name, and a container's uid has none.
        identity: Any = MANAGED_BY_OPERATOR
        await kopf.operator(
            registry=registry, settings=_kopf_settings(), clusterwide=True, identity=identity
        )


def end_process(keeper: asyncio.Task[None]) -> None:
    """End this process: whatever ended the keeper, nobody renews the Lease any more."""
    why = "cancelled" if keeper.cancelled() else repr(keeper.exception())
    _log.error("this operator ends: another one leads, or may", why=why)
    # Its writes are refused already, and kopf would take its time to stop.
    os._exit(1)


def _kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.persistence.diffbase_storage = handlers.NoDiffBase()
    settings.persistence.progress_storage = handlers.NoProgress()
    for kind in (JOBS, PODS):
        settings.watching.label_selectors[kind.group, kind.version, kind.plural] = kind.selector
    settings.watching.server_timeout = 290
    settings.watching.client_timeout = 300
    settings.watching.chunk_size = 500
    return settings


async def run(settings: Settings) -> None:
    """The whole operator, until a signal."""
    metrics = Metrics(CollectorRegistry())
    task = asyncio.current_task()
    if task is not None:  # kopf takes the signal over while it runs
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    failpoint = Failpoint(settings.failpoint)
    async with connect(settings.request_timeout_seconds, metrics, failpoint) as gateway:
        await Operator(gateway, settings, metrics).run()
