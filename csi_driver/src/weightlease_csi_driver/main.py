"""The command `weightlease-csi-driver`: settings, logs, sockets, signals."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc
import structlog

from weightlease.names import CSI_DRIVER, STORE_ROOT, VOLUMES_DIRECTORY, VOLUMES_SOCKET
from weightlease_csi_driver import __version__
from weightlease_csi_driver.agent import SocketAgent
from weightlease_csi_driver.mounts import HostMounter
from weightlease_csi_driver.protocol import csi_pb2, pluginregistration_pb2
from weightlease_csi_driver.services import Identity, Node, Registration, handlers
from weightlease_csi_driver.volumes import Caretaker, Volumes

log = structlog.get_logger(__name__)
_THREADS = 8
_CALLS = 64
_MESSAGE_BYTES = 1 << 20
_STOP_SECONDS = 10.0
_CARETAKER_SECONDS = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; the exit status."""
    _configure_logs()
    given = read_arguments(arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    # Sockets for root alone.
    os.umask(0o077)
    volumes = Volumes(
        SocketAgent(os.path.join(given.volumes, os.path.basename(VOLUMES_SOCKET))),
        HostMounter(given.kubelet),
        kubelet=given.kubelet,
        volumes=given.volumes,
        store=given.store,
    )
    server = build_server(volumes, node=given.node_name, kubelet=given.kubelet)
    caretaker = Caretaker(volumes, given.caretaker_seconds)
    server.start()
    caretaker.start()
    log.info("serving", endpoint=endpoint_of(given.kubelet), version=__version__)
    stop.wait()
    log.info("stopping")
    caretaker.stop()
    server.stop(_STOP_SECONDS).wait()
    return 0


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Flags over WEIGHTLEASE_NODE_NAME over defaults."""
    parser = argparse.ArgumentParser(
        prog="weightlease-csi-driver",
        description="Mounts pods' sockets and artifacts' files that the node agent prepared.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument(
        "--node-name",
        default=os.environ.get("WEIGHTLEASE_NODE_NAME") or os.uname().nodename,
        help="the Node's name",
    )
    parser.add_argument("--kubelet", default="/var/lib/kubelet", help="the kubelet's folder")
    parser.add_argument("--volumes", default=VOLUMES_DIRECTORY, help="the agent's volumes")
    parser.add_argument("--store", default=STORE_ROOT, help="the folder of all storage classes")
    parser.add_argument(
        "--caretaker-seconds",
        type=float,
        default=_CARETAKER_SECONDS,
        help="how often volumes are looked for that the kubelet has forgotten",
    )
    return parser.parse_args(arguments)


def endpoint_of(kubelet: str) -> str:
    """Where the kubelet calls the driver."""
    return f"{kubelet}/plugins/{CSI_DRIVER}/csi.sock"


def registration_of(kubelet: str) -> str:
    """Where the kubelet looks for plugins."""
    return f"{kubelet}/plugins_registry/{CSI_DRIVER}-reg.sock"


def build_server(volumes: Volumes, *, node: str, kubelet: str) -> grpc.Server:
    """The server with all services at both sockets.

    Raises:
        RuntimeError, OSError: a socket can't be bound.

    """
    server = grpc.server(
        ThreadPoolExecutor(_THREADS, thread_name_prefix="call"),
        handlers=[
            handlers(csi_pb2, "Identity", Identity()),
            handlers(csi_pb2, "Node", Node(volumes, node=node, kubelet=kubelet)),
            handlers(pluginregistration_pb2, "Registration", Registration(endpoint_of(kubelet))),
        ],
        options=(("grpc.max_receive_message_length", _MESSAGE_BYTES),),
        maximum_concurrent_rpcs=_CALLS,
    )
    for path in (endpoint_of(kubelet), registration_of(kubelet)):
        os.makedirs(os.path.dirname(path), mode=0o750, exist_ok=True)
        server.add_insecure_port(f"unix:{path}")
    return server


def _configure_logs() -> None:
    """One JSON object a line on stderr."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
