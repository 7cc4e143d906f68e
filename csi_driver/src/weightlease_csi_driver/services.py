"""The gRPC services: what the kubelet calls, and how an error reaches the pod's event.

| what went wrong | status |
|---|---|
| a request of no kubelet, or what the pod's author must change | INVALID_ARGUMENT |
| another call for this volume runs | ABORTED |
| retryable: not ready yet, agent away | UNAVAILABLE, so the kubelet tries again |
| not this pod's to have | PERMISSION_DENIED |
| anything else of the agent's | FAILED_PRECONDITION |
| the kernel refuses | INTERNAL |
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

import grpc
import structlog

from weightlease.errors import Failure, FailureCode, WeightLeaseError
from weightlease.names import CSI_DRIVER
from weightlease_csi_driver import __version__
from weightlease_csi_driver.checks import BadRequest, parse_publish, parse_target, parse_volume_id
from weightlease_csi_driver.protocol import csi_pb2 as csi
from weightlease_csi_driver.protocol import pluginregistration_pb2 as registration
from weightlease_csi_driver.volumes import Busy, Volumes

log = structlog.get_logger(__name__)
_MAX_DETAILS = 1024
_CODES = {
    FailureCode.PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
    FailureCode.INVALID_CONFIG: grpc.StatusCode.INVALID_ARGUMENT,
}
ResultT = TypeVar("ResultT")


class Identity:
    """csi.v1.Identity."""

    def GetPluginInfo(self, _: csi.GetPluginInfoRequest) -> csi.GetPluginInfoResponse:  # noqa: N802
        return csi.GetPluginInfoResponse(name=CSI_DRIVER, vendor_version=__version__)

    def GetPluginCapabilities(  # noqa: N802
        self, _: csi.GetPluginCapabilitiesRequest
    ) -> csi.GetPluginCapabilitiesResponse:
        return csi.GetPluginCapabilitiesResponse()

    def Probe(self, _: csi.ProbeRequest) -> csi.ProbeResponse:  # noqa: N802
        return csi.ProbeResponse()


class Node:
    """csi.v1.Node, for inline volumes."""

    def __init__(self, volumes: Volumes, *, node: str, kubelet: str) -> None:
        self._volumes = volumes
        self._node = node
        self._kubelet = kubelet

    def NodePublishVolume(  # noqa: N802
        self, request: csi.NodePublishVolumeRequest
    ) -> csi.NodePublishVolumeResponse:
        params, target = parse_publish(request, self._kubelet)
        self._volumes.publish(params, target)
        return csi.NodePublishVolumeResponse()

    def NodeUnpublishVolume(  # noqa: N802
        self, request: csi.NodeUnpublishVolumeRequest
    ) -> csi.NodeUnpublishVolumeResponse:
        target = parse_target(request.target_path, self._kubelet)
        self._volumes.unpublish(parse_volume_id(request.volume_id), target)
        return csi.NodeUnpublishVolumeResponse()

    def NodeGetCapabilities(  # noqa: N802
        self, _: csi.NodeGetCapabilitiesRequest
    ) -> csi.NodeGetCapabilitiesResponse:
        return csi.NodeGetCapabilitiesResponse()

    def NodeGetInfo(self, _: csi.NodeGetInfoRequest) -> csi.NodeGetInfoResponse:  # noqa: N802
        return csi.NodeGetInfoResponse(node_id=self._node)


class Registration:
    """pluginregistration.Registration; `endpoint` is the driver's socket as the kubelet sees it."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def GetInfo(self, _: registration.InfoRequest) -> registration.PluginInfo:  # noqa: N802
        return registration.PluginInfo(
            type="CSIPlugin",
            name=CSI_DRIVER,
            endpoint=self._endpoint,
            supported_versions=["1.0.0"],
        )

    def NotifyRegistrationStatus(  # noqa: N802
        self, status: registration.RegistrationStatus
    ) -> registration.RegistrationStatusResponse:
        if status.plugin_registered:
            log.info("registered with the kubelet")
        else:
            log.error("the kubelet refuses this driver", error=status.error)
        return registration.RegistrationStatusResponse()


def status_of(error: Exception) -> tuple[grpc.StatusCode, str]:
    """The status and its text that an error becomes."""
    match error:
        case BadRequest():
            code, text = grpc.StatusCode.INVALID_ARGUMENT, str(error)
        case Busy():
            code, text = grpc.StatusCode.ABORTED, str(error)
        case WeightLeaseError(failure=failure):
            code, text = _code_of(failure), failure.message
        case _:
            code, text = grpc.StatusCode.INTERNAL, str(error)
    return code, text[:_MAX_DETAILS]


def _code_of(failure: Failure) -> grpc.StatusCode:
    if failure.retryable:
        return grpc.StatusCode.UNAVAILABLE
    return _CODES.get(failure.code, grpc.StatusCode.FAILED_PRECONDITION)


def handlers(module: ModuleType, service: str, servicer: object) -> grpc.GenericRpcHandler:
    """The handler of one service as its .proto declares it."""
    descriptor = module.DESCRIPTOR.services_by_name[service]
    methods = {
        method.name: grpc.unary_unary_rpc_method_handler(
            _answering(getattr(servicer, method.name), method.name),
            request_deserializer=getattr(module, method.input_type.name).FromString,
            response_serializer=getattr(module, method.output_type.name).SerializeToString,
        )
        for method in descriptor.methods
    }
    return grpc.method_handlers_generic_handler(descriptor.full_name, methods)


def _answering(
    function: Callable[[Any], ResultT], name: str
) -> Callable[[Any, grpc.ServicerContext], ResultT]:
    def answer(request: Any, context: grpc.ServicerContext) -> ResultT:
        try:
            return function(request)
        except (BadRequest, Busy, WeightLeaseError, OSError) as error:
            code, text = status_of(error)
            log.warning("call refused", call=name, code=code.name, error=text)
            context.abort(code, text)

    return answer
