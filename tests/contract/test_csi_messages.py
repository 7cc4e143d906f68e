"""The reduced messages of CSI and of plugin registration are the published ones, byte for byte.

The golden bytes were encoded by the Go packages that the kubelet itself is built of:
github.com/container-storage-interface/spec v1.9.0 and k8s.io/kubelet v0.36.3.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.message import Message

from weightlease_csi_driver.protocol import csi_pb2 as csi
from weightlease_csi_driver.protocol import pluginregistration_pb2 as registration

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = json.loads((Path(__file__).parent / "golden" / "csi_messages.json").read_text())
MESSAGES: dict[str, Message] = {
    "NodePublishVolumeRequest": csi.NodePublishVolumeRequest(
        volume_id="csi-1",
        publish_context={"a": "b"},
        staging_target_path="/staging",
        target_path="/target",
        readonly=True,
        secrets={"c": "d"},
        volume_context={"artifact": "minilm"},
        volume_capability=csi.VolumeCapability(
            mount=csi.VolumeCapability.MountVolume(
                fs_type="ext4", mount_flags=["ro", "x"], volume_mount_group="7"
            ),
            access_mode=csi.VolumeCapability.AccessMode(
                mode=csi.VolumeCapability.AccessMode.SINGLE_NODE_MULTI_WRITER
            ),
        ),
    ),
    "VolumeCapability": csi.VolumeCapability(
        block=csi.VolumeCapability.BlockVolume(),
        access_mode=csi.VolumeCapability.AccessMode(
            mode=csi.VolumeCapability.AccessMode.SINGLE_NODE_WRITER
        ),
    ),
    "NodeUnpublishVolumeRequest": csi.NodeUnpublishVolumeRequest(
        volume_id="csi-1", target_path="/target"
    ),
    "GetPluginInfoResponse": csi.GetPluginInfoResponse(name="name", vendor_version="1"),
    "NodeGetInfoResponse": csi.NodeGetInfoResponse(node_id="node", max_volumes_per_node=5),
    "PluginInfo": registration.PluginInfo(
        type="CSIPlugin", name="name", endpoint="/socket", supported_versions=["1.0.0", "1.1.0"]
    ),
    "RegistrationStatus": registration.RegistrationStatus(plugin_registered=True, error="why"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_is_read_as_the_kubelet_wrote_it(name: str) -> None:
    ours = MESSAGES[name]
    theirs = type(ours)()
    theirs.ParseFromString(bytes.fromhex(GOLDEN[name]))
    assert theirs == ours


def test_every_golden_message_is_compared() -> None:
    assert set(GOLDEN) == set(MESSAGES)


def test_the_generated_code_is_what_the_proto_files_make(tmp_path: Path) -> None:
    source = ROOT / "csi_driver" / "src"
    folder = source / "weightlease_csi_driver" / "protocol"
    protos = sorted(str(path.relative_to(source)) for path in folder.glob("*.proto"))
    outputs = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I", ".", *outputs, *protos],
        cwd=source,
        check=True,
    )
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*_pb2.py*"))
    assert len(made) == 4
    for path in made:
        assert (source / path).read_text() == (tmp_path / path).read_text(), "run `make generate`"
