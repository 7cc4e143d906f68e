"""The services over a real Unix socket, called as a kubelet calls them."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
from google.protobuf.message import Message

from csi_world import CONTEXT, TARGET, VOLUME_ID, FakeAgent, FakeMounter, away, publish_request
from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.names import CSI_DRIVER
from weightlease_csi_driver import __version__
from weightlease_csi_driver.main import build_server, endpoint_of, registration_of
from weightlease_csi_driver.protocol import csi_pb2 as csi
from weightlease_csi_driver.protocol import pluginregistration_pb2 as registration
from weightlease_csi_driver.volumes import Volumes

SECONDS = 20.0
MessageT = TypeVar("MessageT", bound=Message)


@dataclass
class Served:
    """A running driver."""

    kubelet: str
    agent: FakeAgent
    mounter: FakeMounter
    channel: grpc.Channel

    def call(self, method: str, request: Message, kind: type[MessageT]) -> MessageT:
        stub = self.channel.unary_unary(
            method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=kind.FromString,
        )
        answer: MessageT = stub(request, timeout=SECONDS, wait_for_ready=True)
        return answer

    def publish(self, **changes: object) -> csi.NodePublishVolumeResponse:
        path = {"target_path": TARGET.path(self.kubelet)}
        return self.call(
            "/csi.v1.Node/NodePublishVolume",
            publish_request(**(path | changes)),  # type: ignore[arg-type]
            csi.NodePublishVolumeResponse,
        )

    def refusal(self, **changes: object) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.RpcError) as refused:
            self.publish(**changes)
        error: Any = refused.value
        return error.code(), error.details()


@pytest.fixture
def kubelet() -> Iterator[str]:
    """A short path: a socket's has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="wl-") as folder:
        yield folder


@pytest.fixture
def served(kubelet: str) -> Iterator[Served]:
    agent, mounter = FakeAgent(), FakeMounter()
    volumes = Volumes(agent, mounter, kubelet=kubelet, volumes="/volumes", store="/store")
    server = build_server(volumes, node="node-1", kubelet=kubelet)
    server.start()
    try:
        with grpc.insecure_channel(f"unix:{endpoint_of(kubelet)}") as channel:
            yield Served(kubelet, agent, mounter, channel)
    finally:
        server.stop(0).wait()


def test_the_kubelet_learns_where_the_driver_listens(served: Served) -> None:
    path = "/pluginregistration.Registration/GetInfo"
    with grpc.insecure_channel(f"unix:{registration_of(served.kubelet)}") as channel:
        registered = Served(served.kubelet, served.agent, served.mounter, channel)
        info = registered.call(path, registration.InfoRequest(), registration.PluginInfo)
    assert (info.type, info.name) == ("CSIPlugin", CSI_DRIVER)
    assert info.endpoint == endpoint_of(served.kubelet)
    assert list(info.supported_versions) == ["1.0.0"]


@pytest.mark.parametrize("registered", [True, False])
def test_the_kubelets_verdict_is_taken(
    served: Served, capsys: pytest.CaptureFixture[str], registered: bool
) -> None:
    status = registration.RegistrationStatus(plugin_registered=registered, error="no room")
    path = "/pluginregistration.Registration/NotifyRegistrationStatus"
    served.call(path, status, registration.RegistrationStatusResponse)
    printed = "".join(capsys.readouterr())
    assert ("no room" in printed) is not registered


def test_the_driver_says_who_it_is_and_that_it_can_do_nothing_special(served: Served) -> None:
    info = served.call(
        "/csi.v1.Identity/GetPluginInfo", csi.GetPluginInfoRequest(), csi.GetPluginInfoResponse
    )
    assert (info.name, info.vendor_version) == (CSI_DRIVER, __version__)
    served.call("/csi.v1.Identity/Probe", csi.ProbeRequest(), csi.ProbeResponse)
    for service, request, kind in (
        ("Identity/GetPluginCapabilities", csi.GetPluginCapabilitiesRequest, csi.ProbeResponse),
        ("Node/NodeGetCapabilities", csi.NodeGetCapabilitiesRequest, csi.ProbeResponse),
    ):
        assert served.call(f"/csi.v1.{service}", request(), kind).SerializeToString() == b""
    node = served.call(
        "/csi.v1.Node/NodeGetInfo", csi.NodeGetInfoRequest(), csi.NodeGetInfoResponse
    )
    assert (node.node_id, node.max_volumes_per_node) == ("node-1", 0)


def test_publish_and_unpublish(served: Served) -> None:
    served.publish()
    assert set(served.mounter.shown) == {TARGET}
    request = csi.NodeUnpublishVolumeRequest(
        volume_id=VOLUME_ID, target_path=TARGET.path(served.kubelet)
    )
    for _ in range(2):
        served.call("/csi.v1.Node/NodeUnpublishVolume", request, csi.NodeUnpublishVolumeResponse)
    assert (served.mounter.shown, served.agent.made) == ({}, {})


def test_not_ready_is_unavailable_with_the_agents_own_words(served: Served) -> None:
    message = "artifact minilm is not ready on node node-1"
    served.agent.failure = WeightLeaseError.of(
        Stage.LOOKUP, FailureCode.LOCAL_MISS, message, retryable=True
    )
    assert served.refusal() == (grpc.StatusCode.UNAVAILABLE, message)
    served.agent.failure = away()
    assert served.refusal() == (grpc.StatusCode.UNAVAILABLE, "nobody listens")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (FailureCode.PERMISSION_DENIED, grpc.StatusCode.PERMISSION_DENIED),
        (FailureCode.INVALID_CONFIG, grpc.StatusCode.INVALID_ARGUMENT),
        (FailureCode.UNSUPPORTED, grpc.StatusCode.FAILED_PRECONDITION),
    ],
)
def test_each_failure_has_its_status(
    served: Served, code: FailureCode, status: grpc.StatusCode
) -> None:
    served.agent.failure = WeightLeaseError.of(Stage.ACCESS, code, "why")
    assert served.refusal() == (status, "why")


def test_a_request_of_no_kubelet_is_an_invalid_argument(served: Served) -> None:
    code, text = served.refusal(volume_context=CONTEXT | {"x": "y"})
    assert (code, "'x' is unknown" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)


def test_what_the_kernel_refuses_is_internal(served: Served) -> None:
    served.mounter.error = OSError(1, "mount: not permitted")
    code, text = served.refusal()
    assert (code, "not permitted" in text) == (grpc.StatusCode.INTERNAL, True)


def test_a_huge_message_and_an_unknown_method_cost_only_themselves(served: Served) -> None:
    code, _ = served.refusal(volume_context={"x": "y" * (2 << 20)})
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(grpc.RpcError) as refused:
        served.call("/csi.v1.Node/NodeExpandVolume", csi.ProbeRequest(), csi.ProbeResponse)
    error: Any = refused.value
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    served.publish()


def test_a_driver_binds_over_the_socket_of_one_that_was_killed(kubelet: str) -> None:
    for path in (endpoint_of(kubelet), registration_of(kubelet)):
        Path(path).parent.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(path)
        assert os.path.exists(path)
    volumes = Volumes(FakeAgent(), FakeMounter(), kubelet=kubelet, volumes="/v", store="/s")
    server = build_server(volumes, node="node-1", kubelet=kubelet)
    server.start()
    try:
        with grpc.insecure_channel(f"unix:{endpoint_of(kubelet)}") as channel:
            served = Served(kubelet, FakeAgent(), FakeMounter(), channel)
            served.publish()
    finally:
        server.stop(0).wait()
