"""What a kubelet may ask, and what it never asks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csi_world import CONTEXT, KUBELET, TARGET, VOLUME_ID, publish_request
from weightlease.wire import PublishVolumeParams
from weightlease_csi_driver.checks import BadRequest, parse_publish, parse_target
from weightlease_csi_driver.protocol import csi_pb2 as csi

INFO = "csi.storage.k8s.io/"
GOOD = TARGET.path(KUBELET)


def test_an_inline_volume_becomes_what_the_agent_is_asked() -> None:
    params, target = parse_publish(publish_request({"artifact": "team-a/minilm:model"}), KUBELET)
    assert target == TARGET
    assert params == PublishVolumeParams(
        VOLUME_ID, GOOD, "team-a", "server-0", "uid-0", "default", "team-a/minilm:model"
    )


def test_a_volume_without_an_attribute_asks_for_the_socket_alone() -> None:
    params, _ = parse_publish(publish_request(), KUBELET)
    assert params.artifact == ""


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/etc",
        f"{GOOD}/",
        f"{GOOD}/../mount",
        f"//{GOOD}",
        GOOD.replace("uid-0", ".."),
        GOOD.replace("uid-0", "uid-0/.."),
        GOOD.replace("weights", "."),
        GOOD.replace("weights", "Weights"),
        GOOD.replace("kubernetes.io~csi", "kubernetes.io~empty-dir"),
        GOOD.replace("/mount", "/globalmount"),
        GOOD.replace("/var/lib/kubelet", "/var/lib/kubelet2"),
        f"{GOOD}\0",
    ],
)
def test_a_target_outside_a_pods_inline_volumes_is_refused(path: str) -> None:
    with pytest.raises(BadRequest, match="target_path"):
        parse_target(path, KUBELET)


@given(st.text(max_size=80))
def test_a_target_is_accepted_only_if_it_is_written_back_the_same(tail: str) -> None:
    path = f"{KUBELET}/pods/{tail}"
    try:
        target = parse_target(path, KUBELET)
    except BadRequest:
        return
    assert target.path(KUBELET) == path
    assert ".." not in target.parts


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"volume_id": "../../x"}, "volume_id"),
        ({"volume_id": ""}, "volume_id"),
        ({"staging_target_path": "/x"}, "staging_target_path"),
        ({"secrets": {"a": "b"}}, "secrets"),
        ({"publish_context": {"a": "b"}}, "publish_context"),
        ({"volume_capability": csi.VolumeCapability()}, "file system"),
        (
            {"volume_capability": csi.VolumeCapability(block=csi.VolumeCapability.BlockVolume())},
            "block",
        ),
        (
            {
                "volume_capability": csi.VolumeCapability(
                    mount=csi.VolumeCapability.MountVolume(fs_type="ext4")
                )
            },
            "fsType",
        ),
        (
            {
                "volume_capability": csi.VolumeCapability(
                    mount=csi.VolumeCapability.MountVolume(mount_flags=["exec"])
                )
            },
            "mount options",
        ),
        ({"volume_context": {}}, "podInfoOnMount"),
        ({"volume_context": CONTEXT | {f"{INFO}ephemeral": "false"}}, "inline"),
        ({"volume_context": CONTEXT | {"socket": "x"}}, "'socket' is unknown"),
        ({"volume_context": CONTEXT | {"artifact": "x" * 600}}, "exceeds"),
    ],
)
def test_what_is_no_inline_volume_of_ours_is_refused_and_named(
    changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(BadRequest, match=told):
        parse_publish(publish_request(**changes), KUBELET)


def test_a_pod_that_claims_to_be_another_is_refused_by_its_own_target() -> None:
    """An author can write any attribute, but not the uid that the API server will choose."""
    with pytest.raises(BadRequest, match="'uid-9' is not that of target_path"):
        parse_publish(publish_request({f"{INFO}pod.uid": "uid-9"}), KUBELET)
