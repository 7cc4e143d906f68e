"""The command `weightlease-node-agent`: settings, logs, signals."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError

from weightlease.errors import WeightLeaseError
from weightlease_node_agent import __version__
from weightlease_node_agent.agent import Agent
from weightlease_node_agent.cluster import Cluster, ClusterError
from weightlease_node_agent.settings import AuthMode, Settings

log = structlog.get_logger(__name__)
EXIT_USAGE = 2
EXIT_START = 1
EXIT_BROKEN = 70


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an agent until SIGTERM or SIGINT; the exit status."""
    configure_logs()
    try:
        settings = read_settings(arguments)
    except ValidationError as error:
        log.critical("settings are invalid", problems=[_problem(each) for each in error.errors()])
        return EXIT_USAGE
    try:
        return asyncio.run(serve(settings))
    except (WeightLeaseError, ClusterError, OSError) as error:
        log.critical("agent can't start", error=str(error))
        return EXIT_START


def read_settings(arguments: Sequence[str] | None) -> Settings:
    """Flags over environment over defaults.

    Raises:
        pydantic.ValidationError: the settings contradict themselves or a value is out of range.

    """
    parser = argparse.ArgumentParser(
        prog="weightlease-node-agent",
        description="Owns a node's stores and leases what they hold.",
        epilog="Every setting is also a variable WEIGHTLEASE_<NAME>, see settings.py.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--root", type=Path, help="store root: disk domains go to ROOT/disk")
    parser.add_argument("--memory-root", type=Path, help="root of memory domains, on a tmpfs")
    parser.add_argument("--socket", type=Path, help="where peers connect")
    parser.add_argument("--auth", type=AuthMode, choices=list(AuthMode), help="how peers prove who")
    parser.add_argument("--node-name", help="name of this node")
    parser.add_argument("--http-port", type=int, help="port of probes and metrics, -1 for none")
    given = parser.parse_args(arguments)
    chosen: dict[str, Any] = {
        "disk_root": given.root / "disk" if given.root else None,
        "memory_root": given.memory_root,
        "socket": given.socket,
        "auth": given.auth,
        "node_name": given.node_name,
        "http_port": given.http_port,
    }
    return Settings(**{name: value for name, value in chosen.items() if value is not None})


async def serve(settings: Settings) -> int:
    """Serve until told to stop, or until an invariant breaks; the exit status."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    agent = Agent(settings, await _cluster(settings))
    await agent.start()
    ends = [asyncio.create_task(event.wait()) for event in (stop, agent.broken)]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    await agent.stop()
    return EXIT_BROKEN if agent.broken.is_set() else 0


def configure_logs() -> None:
    """One JSON object a line on stderr."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


async def _cluster(settings: Settings) -> Cluster | None:
    if settings.auth is AuthMode.UID:
        return None
    # 60 MB and 0.4 s that a bare host does not pay for.
    from weightlease_node_agent.gateway import KubernetesCluster

    return await KubernetesCluster.connect(settings.kubeconfig)


def _problem(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"]) or "settings"
    return f"{where}: {error['msg']}"
