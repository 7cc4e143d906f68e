"""A CSI driver's surroundings, in memory: the agent, the mounts, and what a kubelet asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.wire import (
    ListedVolume,
    PublishVolumeParams,
    PublishVolumeResult,
    VolumeContent,
)
from weightlease_csi_driver.checks import Target
from weightlease_csi_driver.mounts import Bind
from weightlease_csi_driver.protocol import csi_pb2 as csi
from weightlease_csi_driver.volumes import Volumes

KUBELET = "/var/lib/kubelet"
VOLUME_ID = "csi-" + "1" * 64
HANDLE = "a" * 32
KEY = "b" * 64
TARGET = Target("uid-0", "weights")
CONTENT = VolumeContent("disk", "team-a", KEY, assets=True)
_INFO = "csi.storage.k8s.io/"
CONTEXT = {
    f"{_INFO}ephemeral": "true",
    f"{_INFO}pod.name": "server-0",
    f"{_INFO}pod.namespace": "team-a",
    f"{_INFO}pod.uid": "uid-0",
    f"{_INFO}serviceAccount.name": "default",
}


def publish_request(
    context: dict[str, str] | None = None, **changes: object
) -> csi.NodePublishVolumeRequest:
    """What a kubelet sends for an inline volume."""
    fields: dict[str, object] = {
        "volume_id": VOLUME_ID,
        "target_path": TARGET.path(KUBELET),
        "volume_capability": csi.VolumeCapability(mount=csi.VolumeCapability.MountVolume()),
        "volume_context": CONTEXT | (context or {}),
    }
    return csi.NodePublishVolumeRequest(**(fields | changes))  # type: ignore[arg-type]


@dataclass
class FakeAgent:
    """Answers as told; `failure` is raised instead while it is set."""

    content: VolumeContent | None = None
    handle: str = HANDLE
    failure: WeightLeaseError | None = None
    made: dict[str, PublishVolumeParams] = field(default_factory=dict)

    def publish(self, params: PublishVolumeParams) -> PublishVolumeResult:
        self._fail()
        self.made[params.volume_id] = params
        return PublishVolumeResult(self.handle, self.content if params.artifact else None)

    def unpublish(self, volume_id: str) -> None:
        self._fail()
        self.made.pop(volume_id, None)

    def volumes(self) -> tuple[ListedVolume, ...]:
        self._fail()
        return tuple(ListedVolume(each.volume_id, each.target) for each in self.made.values())

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


@dataclass
class FakeMounter:
    """Remembers what is shown where."""

    shown: dict[Target, list[Bind]] = field(default_factory=dict)
    error: OSError | None = None

    def show(self, target: Target, binds: Sequence[Bind]) -> None:
        if self.error is not None:
            raise self.error
        self.shown[target] = list(binds)

    def hide(self, target: Target) -> None:
        if self.error is not None:
            raise self.error
        self.shown.pop(target, None)

    def exists(self, target: Target) -> bool:
        return target in self.shown


def away() -> WeightLeaseError:
    """The failure of an agent that does not answer."""
    return WeightLeaseError.of(
        Stage.DOMAIN, FailureCode.DOMAIN_UNAVAILABLE, "nobody listens", retryable=True
    )


def volumes_of(agent: FakeAgent, mounter: FakeMounter) -> Volumes:
    return Volumes(agent, mounter, kubelet=KUBELET, volumes="/volumes", store="/store")
