"""Why a pod that has its node does not start: a volume that does not mount is told by events alone.

Asked only for pods that take longer than the grace, and of each pod not more than once a grace: an
operator that read every event of the cluster would read little else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from weightlease.reasons import Reason
from weightlease_operator.api_errors import Refused
from weightlease_operator.applying import Api
from weightlease_operator.jobs import OWN_VOLUMES
from weightlease_operator.kinds import POD_EVENTS
from weightlease_operator.observation import JobView, Observation, Problem, StartingPod

_ABOUT_VOLUMES = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})
_MESSAGE_LIMIT = 2048

Raw = Mapping[str, Any]


class Mounts:
    """Remembers what pods were told, for one grace."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: dict[str, tuple[datetime, Problem | None]] = {}

    async def explain(self, observed: Observation) -> Observation:
        """The same observation, with pods that are stuck on a volume blocked by it."""
        grace = timedelta(seconds=observed.settings.start_grace_seconds)
        self._forget(observed.now - grace)
        jobs = [await self._explained(observed, job, grace) for job in observed.jobs]
        return replace(observed, jobs=tuple(jobs))

    async def _explained(self, observed: Observation, job: JobView, grace: timedelta) -> JobView:
        pod = job.starting
        if pod is None or observed.now - pod.since < grace:
            return job
        if pod.uid not in self._known:
            self._known[pod.uid] = observed.now, await self._ask(observed, pod)
        return replace(job, blocked=self._known[pod.uid][1])

    async def _ask(self, observed: Observation, pod: StartingPod) -> Problem | None:
        namespace = observed.artifact.metadata.namespace
        try:
            events = await self._api.find(POD_EVENTS, namespace, f"involvedObject.uid={pod.uid}")
        except Refused:  # not allowed to read events: the deadline will tell
            return None
        spec = observed.artifact.spec
        return problem_of(events, hub=spec is None or spec.source.hugging_face is not None)

    def _forget(self, before: datetime) -> None:
        self._known = {uid: known for uid, known in self._known.items() if known[0] > before}


def problem_of(events: Iterable[Raw], *, hub: bool) -> Problem | None:
    """The newest trouble with a volume; with a Hub source every volume is ours."""
    about = [each for each in events if each.get("reason") in _ABOUT_VOLUMES]
    newest = max(about, key=_moment, default=None)
    if newest is None:
        return None
    message = str(newest.get("message") or newest["reason"])[:_MESSAGE_LIMIT]
    ours = hub or any(f'volume "{name}"' in message for name in OWN_VOLUMES)
    return Problem(Reason.POD_NOT_STARTABLE if ours else Reason.SOURCE_NOT_MOUNTABLE, message)


def _moment(event: Raw) -> str:
    return event.get("lastTimestamp") or event.get("eventTime") or ""
