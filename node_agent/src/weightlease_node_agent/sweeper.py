"""Removing, at intervals, what no spec entry names and what crashed producers left."""

from __future__ import annotations

import time
from collections.abc import Mapping

import structlog

from weightlease.reports import InventoryState
from weightlease_node_agent.capacity_settings import Unmanaged
from weightlease_node_agent.domains import Domains
from weightlease_node_agent.executor import Run
from weightlease_node_agent.metrics import Metrics
from weightlease_node_agent.removal import Remover, keep_unmanaged, remove_unwanted
from weightlease_node_agent.survey import Survey, Surveyor
from weightlease_node_agent.wanted import Wanted

log = structlog.get_logger(__name__)


class Sweeper:
    """The leading agent's broom; quarantine is evidence and stays."""

    def __init__(
        self,
        domains: Domains,
        surveyor: Surveyor,
        remover: Remover,
        wanted: Wanted,
        opened: Mapping[str, Unmanaged],
        run: Run,
        metrics: Metrics,
    ) -> None:
        self._domains = domains
        self._surveyor = surveyor
        self._remover = remover
        self._wanted = wanted
        self._opened = opened
        self._run = run
        self._metrics = metrics

    async def sweep(self) -> None:
        """One round."""
        survey = await self.sweep_leftovers()
        # The spec is read after the look: what was published for an entry is judged by a spec at
        # least as new as the artifact.
        removed = await remove_unwanted(
            survey,
            self._wanted.spec,
            keep_unmanaged(self._opened, time.time()),
            self._domains,
            self._remover,
        )
        if removed:
            self._metrics.swept.inc(len(removed))
            log.info("unwanted artifacts removed", keys=removed[:20], count=len(removed))

    async def sweep_leftovers(self) -> Survey:
        """Remove what crashed producers and agents left; what was seen before that."""
        survey = await self._surveyor.look()
        whole = {
            (each.place, each.key) for each in survey.found if each.state is InventoryState.READY
        }
        seen = {place for place, _ in survey.domains}
        for domain in self._domains.all():
            if domain.place not in seen:
                continue
            for key in await self._run(domain.store.leftovers):
                # Cleaning a key takes its artifact too; one that is there keeps its leftovers until
                # its next builder. A build in progress holds the lock that cleanup wants.
                if (domain.place, key) not in whole:
                    await self._remover.remove(domain, key)
        return survey
