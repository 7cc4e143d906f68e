"""etcd, API server, controller-manager and scheduler as processes of the host."""

import signal
from pathlib import Path

from devcluster import configuration, processes, waiting
from devcluster.kubectl import Kubectl
from devcluster.layout import Layout
from devcluster.record import Record

COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_API_SECONDS = 60.0
_STOP_SECONDS = 10.0
_ACCOUNT_SECONDS = 30.0


def pid_file(layout: Layout, component: str) -> Path:
    return layout.pids / f"{component}.json"


def log(layout: Layout, component: str) -> Path:
    return layout.logs / f"{component}.log"


def is_running(layout: Layout) -> bool:
    return all(processes.pid_of(pid_file(layout, name)) is not None for name in COMPONENTS)


def start_api(record: Record, layout: Layout, programs: Path) -> None:
    """The API server and its etcd; returns once both are started, not yet ready."""
    network = record.network
    _spawn(layout, programs, "etcd", configuration.etcd_flags(network, layout), record)
    # It retries until etcd answers, so neither needs to wait.
    flags = configuration.apiserver_flags(network, layout)
    _spawn(layout, programs, "kube-apiserver", flags, record)


def restart_api(record: Record, layout: Layout, programs: Path) -> None:
    """Kills the API server and starts it again; its etcd goes on."""
    pid = processes.pid_of(pid_file(layout, "kube-apiserver"))
    if pid is not None:
        processes.send(pid, signal.SIGKILL)
        processes.wait_gone(pid, _STOP_SECONDS)
    flags = configuration.apiserver_flags(record.network, layout)
    _spawn(layout, programs, "kube-apiserver", flags, record)


def wait_for_api(layout: Layout, kubectl: Kubectl) -> None:
    """Raises DeadlineExceeded or DevclusterError with the log's end."""
    waiting.until(
        kubectl.is_ready,
        "the API server is ready",
        deadline=_API_SECONDS,
        log=log(layout, "kube-apiserver"),
        pid_file=pid_file(layout, "kube-apiserver"),
    )


def start_controllers(record: Record, layout: Layout, programs: Path) -> None:
    flags = configuration.controller_manager_flags(layout)
    _spawn(layout, programs, "kube-controller-manager", flags, record)
    _spawn(layout, programs, "kube-scheduler", configuration.scheduler_flags(layout), record)


def wait_for_controllers(layout: Layout, kubectl: Kubectl) -> None:
    """The default service account is the controller-manager's first visible deed."""
    waiting.until(
        kubectl.has_default_service_account,
        "the default service account exists",
        deadline=_ACCOUNT_SECONDS,
        log=log(layout, "kube-controller-manager"),
        pid_file=pid_file(layout, "kube-controller-manager"),
    )


def _spawn(layout: Layout, programs: Path, name: str, flags: list[str], record: Record) -> None:
    processes.spawn(
        [programs / name, *flags, *record.extra.get(name, [])],
        state=layout.state,
        pid_file=pid_file(layout, name),
        log=log(layout, name),
        env={},
    )
