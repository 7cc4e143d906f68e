"""A real driver, a real agent and real mounts, asked as a kubelet asks."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

import weightlease
from agent_process import AgentProcess, wait_until
from cluster_node import entry
from csi_world import TARGET, VOLUME_ID, publish_request
from driver_process import DriverProcess, NodeMounts
from fake_api_server import FakeApiServer
from raw_peer import RawPeer
from small_artifact import safetensors_bytes
from volume_world import ASSETS, agent_with_volumes, publish
from weightlease_csi_driver.main import endpoint_of
from weightlease_csi_driver.protocol import csi_pb2 as csi

PAYLOAD = safetensors_bytes({"t": ("F32", (64,), bytes(range(256)))})
SECONDS = 30.0


@dataclass
class World:
    """One node with everything on it."""

    api: FakeApiServer
    agent: AgentProcess
    driver: DriverProcess
    node: NodeMounts
    kubelet: Path

    @property
    def target(self) -> Path:
        """The volume as its pod sees it."""
        return self.node.see(TARGET.path(str(self.kubelet)))

    def publish(self, artifact: str = "") -> None:
        attributes = {"artifact": artifact} if artifact else {}
        request = publish_request(attributes, target_path=TARGET.path(str(self.kubelet)))
        self._call("NodePublishVolume", request)

    def unpublish(self) -> None:
        path = TARGET.path(str(self.kubelet))
        request = csi.NodeUnpublishVolumeRequest(volume_id=VOLUME_ID, target_path=path)
        self._call("NodeUnpublishVolume", request)

    def leases(self) -> list[str]:
        return os.listdir(self.agent.domain("team-a") / "leases")

    def _call(self, method: str, request: Any) -> None:
        with grpc.insecure_channel(f"unix:{endpoint_of(str(self.kubelet))}") as channel:
            channel.unary_unary(
                f"/csi.v1.Node/{method}", request_serializer=type(request).SerializeToString
            )(request, timeout=SECONDS, wait_for_ready=True)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with (
        tempfile.TemporaryDirectory(prefix="wl-") as short,
        FakeApiServer(tmp_path) as api,
        NodeMounts() as node,
    ):
        kubelet, volumes = Path(short, "kubelet"), Path(short, "volumes")
        # what a kubelet makes before it calls
        Path(TARGET.path(str(kubelet))).parent.mkdir(parents=True)
        agent = agent_with_volumes(tmp_path, api, volumes)
        driver = DriverProcess(node, kubelet=kubelet, volumes=volumes, store=agent.root)
        with agent, driver:
            yield World(api, agent, driver, node, kubelet)


def refusal(world: World, artifact: str = "") -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as refused:
        world.publish(artifact)
    error: Any = refused.value
    return error.code(), error.details()


def test_a_pod_opens_an_artifacts_files_by_path_and_leases_it_by_its_socket(world: World) -> None:
    publish(world.agent, world.api, PAYLOAD)
    world.publish("minilm")
    files = world.target / "files"
    assert (files / "model.safetensors").read_bytes() == PAYLOAD
    for name, content in ASSETS.items():
        assert (files / name).read_bytes() == content
    with weightlease.connect(str(world.target / "agent.sock"), token_file="") as store:
        store.acquire("minilm").close()
    for place in ("files/model.safetensors", "files/new", "agent.sock.new"):
        with pytest.raises(OSError, match="Read-only"):
            (world.target / place).write_bytes(b"x")
    world.unpublish()
    assert not world.target.exists()
    assert world.leases() == []


def test_a_mapped_file_is_the_stores_own_inode(world: World) -> None:
    key = publish(world.agent, world.api, PAYLOAD)
    world.publish("minilm")
    shown = os.stat(world.target / "files" / "model.safetensors")
    kept = os.stat(world.agent.domain("team-a") / "artifacts" / key / "model.safetensors")
    assert (shown.st_dev, shown.st_ino) == (kept.st_dev, kept.st_ino)


def test_a_volume_waits_for_its_artifact_and_says_so(world: World) -> None:
    world.api.set_spec(entry())
    wait_until(lambda: world.agent.get("/readyz")[0] == 200)
    code, text = refusal(world, "minilm")
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "artifact minilm is not ready on node node-1" in text
    publish(world.agent, world.api, PAYLOAD)
    world.publish("minilm")
    assert (world.target / "files" / "model.safetensors").exists()


def test_everything_goes_on_when_agent_and_driver_are_killed_under_a_mounted_pod(
    world: World,
) -> None:
    publish(world.agent, world.api, PAYLOAD)
    world.publish("minilm")
    with open(world.target / "files" / "model.safetensors", "rb") as held:
        world.agent.kill()
        world.driver.kill()
        assert held.read() == PAYLOAD
        assert (world.target / "files" / "config.json").read_bytes() == b"{}"
        world.agent.start()
        world.driver.start()
        with RawPeer(world.target / "agent.sock") as peer:
            assert peer.greeting is not None
            assert peer.greeting.peer == "team-a/server-0"
        held.seek(0)
        assert held.read() == PAYLOAD
    # what the kubelet does after a restart of its own
    world.publish("minilm")
    assert len(world.leases()) == 1
    world.unpublish()
    assert world.leases() == []


def test_a_pod_ends_while_the_agent_is_away_and_its_lease_ends_later(world: World) -> None:
    publish(world.agent, world.api, PAYLOAD)
    world.publish("minilm")
    world.agent.kill()
    assert refusal(world)[0] is grpc.StatusCode.UNAVAILABLE
    world.unpublish()
    assert not world.target.exists()
    assert len(world.leases()) == 1
    world.agent.start()
    wait_until(lambda: world.leases() == [])


def test_what_a_kubelet_forgot_to_unpublish_ends_too(world: World) -> None:
    publish(world.agent, world.api, PAYLOAD)
    world.publish("minilm")
    world.driver.kill()
    # a pod's folder that somebody removed by hand
    plain = TARGET.path(str(world.kubelet))
    subprocess.run([*world.node.enter, "umount", "-l", plain], check=True)
    os.rmdir(plain)
    world.driver.start()
    wait_until(lambda: world.leases() == [])


def test_another_namespaces_artifact_is_refused_for_good(world: World) -> None:
    publish(world.agent, world.api, PAYLOAD)
    code, text = refusal(world, "team-b/minilm")
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert "team-b" in text


def test_a_stopped_driver_leaves_nothing_that_a_kubelet_would_call(world: World) -> None:
    assert world.driver.stop() == 0
    assert not os.path.exists(endpoint_of(str(world.kubelet)))
