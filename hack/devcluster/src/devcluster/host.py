"""What a cluster takes on the host, each with its way back; every function may be called twice."""

import contextlib
import ipaddress
import json
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path

from devcluster import commands
from devcluster.errors import CommandFailed, DeadlineExceeded

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_CAP_SYS_RESOURCE = 24
SYSCTLS = (
    "net/ipv4/ip_forward",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
"""Kernel settings that the kubelet or pod networking changes, below /proc/sys."""


def read_sysctls() -> dict[str, str]:
    """Present values; those that this kernel lacks are left out."""
    values = {}
    for name in SYSCTLS:
        with contextlib.suppress(OSError):
            values[name] = Path("/proc/sys", name).read_text().strip()
    return values


def write_sysctls(values: dict[str, str]) -> None:
    for name, value in values.items():
        if name in SYSCTLS:
            with contextlib.suppress(OSError):
                Path("/proc/sys", name).write_text(value)


def has_sys_resource() -> bool:
    """Whether this process may lower OOM scores and raise limits (CAP_SYS_RESOURCE)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_RESOURCE & 1)
    return False


def has_address(address: str) -> bool:
    """Whether some interface of the host carries ``address``."""
    listed = json.loads(commands.run(["ip", "-json", "address", "show"]))
    return any(
        entry.get("local") == address for link in listed for entry in link.get("addr_info", [])
    )


def add_loopback_address(address: str) -> None:
    commands.run(["ip", "address", "replace", f"{address}/32", "dev", "lo"])


def remove_loopback_address(address: str) -> None:
    if has_address(address):
        commands.run(["ip", "address", "delete", f"{address}/32", "dev", "lo"])


def has_link(name: str) -> bool:
    return Path("/sys/class/net", name).exists()


def add_bridge(name: str, address: ipaddress.IPv4Interface) -> None:
    """A bridge of this name, up, with this address."""
    if not has_link(name):
        commands.run(["ip", "link", "add", name, "type", "bridge"])
    commands.run(["ip", "address", "replace", str(address), "dev", name])
    commands.run(["ip", "link", "set", name, "up"])


def remove_bridge(name: str) -> None:
    if has_link(name):
        commands.run(["ip", "link", "delete", name])


def port_is_taken(address: str, port: int) -> bool:
    """Whether something already listens at ``address``, which must be the host's."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return True
    return False


def _forwarding_rules(pods: str) -> list[list[str]]:
    mark = ["-m", "comment", "--comment", "weightlease-devcluster"]
    return [
        ["nat", "POSTROUTING", "-s", pods, "!", "-d", pods, *mark, "-j", "MASQUERADE"],
        ["filter", "FORWARD", "-s", pods, *mark, "-j", "ACCEPT"],
        ["filter", "FORWARD", "-d", pods, *mark, "-j", "ACCEPT"],
    ]


def allow_forwarding(pods: str) -> None:
    """Lets pods of all nodes reach each other and the world, also where FORWARD drops."""
    for table, chain, *rule in _forwarding_rules(pods):
        if not commands.succeeds(["iptables", "-w", "-t", table, "-C", chain, *rule]):
            commands.run(["iptables", "-w", "-t", table, "-I", chain, *rule])


def forbid_forwarding(pods: str) -> None:
    for table, chain, *rule in _forwarding_rules(pods):
        while commands.succeeds(["iptables", "-w", "-t", table, "-D", chain, *rule]):
            pass


def cgroup_version() -> int:
    """2 where the unified hierarchy is mounted at the usual place, else 1 (hybrid included)."""
    return 2 if (_CGROUP_ROOT / "cgroup.controllers").exists() else 1


def cgroup_hierarchies() -> list[Path]:
    """Roots below which a node's cgroup must exist."""
    if cgroup_version() == 2:
        return [_CGROUP_ROOT]
    roots = [path for path in _CGROUP_ROOT.iterdir() if (path / "cgroup.procs").exists()]
    # cpu and cpu,cpuacct are often two names of one hierarchy: by real path each comes once.
    return sorted({path.resolve() for path in roots})


def add_cgroup(name: str) -> None:
    """The cgroup ``name`` in every hierarchy, ready for a kubelet to use as its root."""
    for root in cgroup_hierarchies():
        folder = root / name
        folder.mkdir(exist_ok=True)
        if cgroup_version() == 2:
            available = (root / "cgroup.controllers").read_text().split()
            for parent in (root, folder):
                _enable_controllers(parent, available)
            continue
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (root / setting).exists():
                (folder / setting).write_text((root / setting).read_text())


def _enable_controllers(folder: Path, controllers: Iterable[str]) -> None:
    for controller in controllers:
        # One that cannot be delegated (a threaded domain, say) must not cost the others.
        with contextlib.suppress(OSError):
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def cgroup_folders(name: str) -> list[Path]:
    """Existing folders of the cgroup ``name``."""
    folders = [root / name for root in cgroup_hierarchies()]
    return [folder for folder in folders if folder.is_dir()]


def remove_cgroup(name: str, deadline: float = 10.0) -> None:
    """Removes it with all below; the kernel refuses until the last dying task has left."""
    end = time.monotonic() + deadline
    while folders := cgroup_folders(name):
        for top in folders:
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        if cgroup_folders(name) and time.monotonic() > end:
            raise DeadlineExceeded(f"cgroup {name} is still in use after {deadline:.0f} s")
        time.sleep(0.02)


def mounts_below(folder: Path) -> list[str]:
    """Mount points of the host at or below ``folder``, deepest first."""
    inside = f"{folder}/"
    points = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split()[4].encode().decode("unicode_escape")
        if f"{point}/".startswith(inside):
            points.append(point)
    return sorted(points, key=len, reverse=True)


def unmount_below(folder: Path) -> None:
    """Raises CommandFailed when a mount stays: nothing below it may then be deleted."""
    for point in mounts_below(folder):
        try:
            commands.run(["umount", point])
        except CommandFailed:
            commands.run(["umount", "--lazy", point])


def nearest_existing(folder: Path) -> Path:
    """``folder`` or the nearest of its parents that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def filesystem_type(folder: Path) -> str:
    """Type of the filesystem that holds ``folder`` or its nearest existing parent."""
    found = nearest_existing(folder)
    return commands.run(["stat", "--file-system", "--format", "%T", found]).strip()
