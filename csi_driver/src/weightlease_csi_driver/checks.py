"""What a kubelet may ask, checked as if anybody could ask it.

A pod's author writes the volume's attributes, a pod's uid is chosen by the API server, and the
kubelet's own statements about the pod stand among the former. So the target's path, which holds the
uid, and the stated uid must agree: an author cannot know it beforehand.

    <kubelet>/pods/<pod uid>/volumes/kubernetes.io~csi/<volume's name>/mount
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from weightlease.names import VOLUME_ATTRIBUTE_ARTIFACT
from weightlease.wire import PublishVolumeParams
from weightlease_csi_driver.protocol.csi_pb2 import NodePublishVolumeRequest, VolumeCapability

MOUNT_NAME = "mount"
_PLUGIN = "kubernetes.io~csi"
_POD_UID = re.compile(r"[A-Za-z0-9-]{1,64}")
_VOLUME_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_VOLUME_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_INFO = "csi.storage.k8s.io/"
_MAX_ARTIFACT = 512


class BadRequest(Exception):
    """A request that no kubelet makes of this driver; the text names field, value and way out."""


@dataclass(frozen=True)
class Target:
    """Where one volume is mounted: `parts` lead from the kubelet's folder to the mount's parent."""

    pod_uid: str
    volume: str

    @property
    def parts(self) -> tuple[str, ...]:
        return ("pods", self.pod_uid, "volumes", _PLUGIN, self.volume)

    def path(self, kubelet: str) -> str:
        """The whole path, as the kubelet writes it."""
        return "/".join((kubelet, *self.parts, MOUNT_NAME))


def parse_target(path: str, kubelet: str) -> Target:
    """The target in a path of the kubelet at `kubelet`.

    Raises:
        BadRequest: the path is not exactly of the form above.

    """
    parts = path.removeprefix(f"{kubelet}/").split("/")
    if path.startswith(f"{kubelet}/") and len(parts) == 6:
        target = Target(parts[1], parts[4])
        if (
            _POD_UID.fullmatch(target.pod_uid)
            and _VOLUME_NAME.fullmatch(target.volume)
            and target.path(kubelet) == path
        ):
            return target
    raise BadRequest(f"target_path {path[:300]!r} is no inline volume's below {kubelet}")


def parse_volume_id(volume_id: str) -> str:
    """The id, if it is one.

    Raises:
        BadRequest: it is not.

    """
    if _VOLUME_ID.fullmatch(volume_id) is None:
        raise BadRequest(f"volume_id {volume_id[:140]!r} is not what a kubelet makes")
    return volume_id


def parse_publish(
    request: NodePublishVolumeRequest, kubelet: str
) -> tuple[PublishVolumeParams, Target]:
    """What to ask the agent for, and where to mount it.

    Raises:
        BadRequest: the request is not for an inline volume of ours.

    """
    volume_id = parse_volume_id(request.volume_id)
    target = parse_target(request.target_path, kubelet)
    _check_capability(request.volume_capability)
    for name in ("staging_target_path", "publish_context", "secrets"):
        if getattr(request, name):
            raise BadRequest(f"{name} has no meaning for an inline volume of this driver")
    info, attributes = _split(request.volume_context)
    if info.get("ephemeral") != "true":
        raise BadRequest(
            "only inline volumes are served: the CSIDriver object must have podInfoOnMount true "
            "and volumeLifecycleModes [Ephemeral]"
        )
    if info.get("pod.uid") != target.pod_uid:
        stated = info.get("pod.uid", "")[:80]
        raise BadRequest(f"the pod's uid {stated!r} is not that of target_path, {target.pod_uid!r}")
    unknown = sorted(set(attributes) - {VOLUME_ATTRIBUTE_ARTIFACT})
    if unknown:
        raise BadRequest(
            f"volume attribute {unknown[0][:80]!r} is unknown; the only one is "
            f"{VOLUME_ATTRIBUTE_ARTIFACT}"
        )
    artifact = attributes.get(VOLUME_ATTRIBUTE_ARTIFACT, "")
    if len(artifact) > _MAX_ARTIFACT:
        raise BadRequest(f"volume attribute {VOLUME_ATTRIBUTE_ARTIFACT} exceeds {_MAX_ARTIFACT}")
    params = PublishVolumeParams(
        volume_id,
        request.target_path,
        info.get("pod.namespace", ""),
        info.get("pod.name", ""),
        target.pod_uid,
        info.get("serviceAccount.name", ""),
        artifact,
    )
    return params, target


def _check_capability(capability: VolumeCapability) -> None:
    if capability.WhichOneof("access_type") != "mount":
        raise BadRequest("only volumes with a file system are served, no block devices")
    mount = capability.mount
    if mount.fs_type:
        raise BadRequest(f"fsType {mount.fs_type[:40]!r} has no meaning here; leave it out")
    if mount.mount_flags:
        raise BadRequest("mount options have no meaning here; leave them out")


def _split(context: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """What the kubelet says of the pod, and what the pod's author wrote."""
    info = {
        name.removeprefix(_INFO): value for name, value in context.items() if name.startswith(_INFO)
    }
    return info, {name: value for name, value in context.items() if not name.startswith(_INFO)}
