"""Events on WeightArtifacts, the same one not more than once in a while.

A status can swing between two reasons for hours; the API server need not hear each time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog

from weightlease.names import API_VERSION, MANAGED_BY_OPERATOR, hashed_name
from weightlease_operator.api_errors import ApiError, Conflict
from weightlease_operator.applying import Api
from weightlease_operator.kinds import EVENTS
from weightlease_operator.observation import ArtifactView
from weightlease_operator.plans import PlannedEvent

_QUIET = timedelta(minutes=10)
_REMEMBERED = 10_000
_NOTE_LIMIT = 1024

_log = structlog.get_logger(__name__)


class EventRecorder:
    """Writes events.k8s.io/v1 Events; never fails a reconciliation."""

    def __init__(self, api: Api, clock: Callable[[], datetime], instance: str) -> None:
        self._api, self._clock, self._instance = api, clock, instance
        self._told: OrderedDict[tuple[str, str, str], datetime] = OrderedDict()

    async def record(self, artifact: ArtifactView, event: PlannedEvent) -> None:
        now, metadata = self._clock(), artifact.metadata
        told = (metadata.uid, event.reason.value, event.message)
        if now - self._told.get(told, now - _QUIET) < _QUIET:
            return
        self._remember(told, now)
        note = event.message.encode()[:_NOTE_LIMIT].decode(errors="ignore")
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": hashed_name(metadata.name, *told, now.isoformat()),
                "namespace": metadata.namespace,
            },
            "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": MANAGED_BY_OPERATOR,
            "reportingInstance": self._instance,
            "action": "Reconcile",
            "reason": event.reason.value,
            "type": "Warning" if event.warning else "Normal",
            "note": note,
            "regarding": {
                "apiVersion": API_VERSION,
                "kind": "WeightArtifact",
                "name": metadata.name,
                "namespace": metadata.namespace,
                "uid": metadata.uid,
            },
        }
        try:
            await self._api.create(EVENTS, metadata.namespace, body)
        except Conflict:
            return
        except ApiError as error:
            # A terminating namespace takes no events; nothing depends on one.
            _log.info("an event was not recorded", reason=event.reason.value, error=str(error))

    def _remember(self, told: tuple[str, str, str], now: datetime) -> None:
        self._told[told] = now
        self._told.move_to_end(told)
        while len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
