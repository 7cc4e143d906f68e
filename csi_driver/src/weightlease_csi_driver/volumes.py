"""Publishing and unpublishing one volume: the agent first, then the mounts, and back again.

Unpublish never waits for an agent that is away: the pod would hang in Terminating. What the agent
was not told then, `Caretaker` tells it later: a volume whose target is gone has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.identity import is_key
from weightlease.names import StorageClass
from weightlease.wire import PublishVolumeParams, PublishVolumeResult, VolumeContent
from weightlease_csi_driver.agent import Agent
from weightlease_csi_driver.checks import BadRequest, Target, parse_target
from weightlease_csi_driver.mounts import Bind, Mounter

log = structlog.get_logger(__name__)
_HEX = frozenset("0123456789abcdef")
_LABEL = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")


class Busy(Exception):
    """Another call for the same volume is in progress."""


class Volumes:
    """Every volume of this node, one call at a time for each."""

    def __init__(
        self, agent: Agent, mounter: Mounter, *, kubelet: str, volumes: str, store: str
    ) -> None:
        self._agent = agent
        self._mounter = mounter
        self._kubelet = kubelet
        self._root = volumes
        self._store = store
        self._busy: set[str] = set()
        self._lock = threading.Lock()

    def publish(self, params: PublishVolumeParams, target: Target) -> None:
        """Make a volume and show it at its target; doing so again changes nothing.

        Raises:
            Busy, WeightLeaseError, OSError: what the pod's event will tell.

        """
        with self._alone(params.volume_id):
            made = self._agent.publish(params)
            self._mounter.show(target, self._binds(made))
        log.info("volume published", volume=params.volume_id, target=params.target)

    def unpublish(self, volume_id: str, target: Target) -> None:
        """Hide a volume and end it; one that is not there is no error.

        Raises:
            Busy, OSError: the kubelet is to try again.

        """
        with self._alone(volume_id):
            self._mounter.hide(target)
            try:
                self._agent.unpublish(volume_id)
            except WeightLeaseError as error:
                log.warning("agent is told later", volume=volume_id, failure=str(error.failure))
        log.info("volume unpublished", volume=volume_id)

    def end_forgotten(self) -> list[str]:
        """End volumes whose target is gone; their ids.

        Raises:
            WeightLeaseError: the agent does not answer.

        """
        ended = []
        for listed in self._agent.volumes():
            try:
                target = parse_target(listed.target, self._kubelet)
                with self._alone(listed.volume_id):
                    if self._mounter.exists(target):
                        continue
                    self._agent.unpublish(listed.volume_id)
            except (BadRequest, Busy, OSError) as error:
                log.warning("volume is looked at later", volume=listed.volume_id, error=str(error))
                continue
            ended.append(listed.volume_id)
        return ended

    def _binds(self, made: PublishVolumeResult) -> list[Bind]:
        if len(made.handle) != 32 or not _HEX.issuperset(made.handle):
            raise _distrusted(f"handle {made.handle[:80]!r}")
        binds = [Bind(self._root, (made.handle, "pod"))]
        if made.content is not None:
            binds.extend(self._content(made.content))
        return binds

    def _content(self, content: VolumeContent) -> Iterator[Bind]:
        domain = (content.storage_class, content.namespace)
        if content.storage_class not in set(StorageClass):
            raise _distrusted(f"storage class {content.storage_class[:80]!r}")
        if not content.namespace or not _LABEL.issuperset(content.namespace):
            raise _distrusted(f"namespace {content.namespace[:80]!r}")
        if not is_key(content.key):
            raise _distrusted(f"key {content.key[:80]!r}")
        payloads = (*domain, "artifacts", content.key)
        yield Bind(self._store, payloads, (".content", "payloads"))
        if content.assets:
            yield Bind(self._store, (*domain, "assets", content.key), (".content", "assets"))

    @contextmanager
    def _alone(self, volume_id: str) -> Iterator[None]:
        with self._lock:
            if volume_id in self._busy:
                raise Busy(f"volume {volume_id} is being worked on")
            self._busy.add(volume_id)
        try:
            yield
        finally:
            with self._lock:
                self._busy.discard(volume_id)


class Caretaker:
    """Ends what the kubelet has forgotten, at once and then at intervals, in a thread."""

    def __init__(self, volumes: Volumes, seconds: float) -> None:
        self._volumes = volumes
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="caretaker", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, after the round in progress."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                ended = self._volumes.end_forgotten()
                if ended:
                    log.info("forgotten volumes ended", volumes=ended[:20], count=len(ended))
            except WeightLeaseError as error:
                log.info("agent is away", failure=str(error.failure))
            if self._stop.wait(self._seconds):
                return


def _distrusted(what: str) -> WeightLeaseError:
    return WeightLeaseError.of(
        Stage.ACCESS, FailureCode.PROTOCOL_ERROR, f"the agent answered with {what}"
    )
