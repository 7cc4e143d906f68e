"""What the doctor needs to know about this machine, looked up once."""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from devcluster import binaries, commands, components, host, nodes
from devcluster.components import COMPONENTS, Version
from devcluster.errors import DevclusterError
from devcluster.settings import Settings

_GO_VERSION = re.compile(r"go(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Machine:
    """Observations only; ``doctor`` judges them."""

    system: str
    is_root: bool
    has_apt: bool
    mount_namespaces: bool
    overlay_filesystem: bool
    tools: frozenset[str]
    cni_plugins: Path | None
    openssl: Version | None
    go: tuple[int, int] | None
    gcc: bool
    ready: frozenset[str]
    """Names of components that are built already or found on the machine."""
    free_cache_bytes: int
    free_state_bytes: int
    available_memory_bytes: int


TOOLS = (
    "buildah",
    "git",
    "ip",
    "iptables",
    "mmdebstrap",
    "mount",
    "nsenter",
    "openssl",
    "promtool",
    "strace",
    "unshare",
)


def observe(settings: Settings) -> Machine:
    is_root = os.geteuid() == 0
    return Machine(
        system=os.uname().sysname,
        is_root=is_root,
        has_apt=shutil.which("apt-get") is not None,
        mount_namespaces=is_root
        and commands.succeeds(["unshare", "--mount", "--propagation", "private", "true"]),
        overlay_filesystem="\toverlay" in Path("/proc/filesystems").read_text(),
        tools=frozenset(tool for tool in TOOLS if shutil.which(tool)),
        cni_plugins=nodes.find_cni_plugins(),
        openssl=_openssl(),
        go=_go(),
        gcc=shutil.which("gcc") is not None,
        ready=frozenset(
            component.name
            for component in COMPONENTS
            if binaries.built_folder(settings.cache, component).is_dir()
            or binaries.find_on_machine(component, settings.cache) is not None
        ),
        free_cache_bytes=_free_bytes(settings.cache),
        free_state_bytes=_free_bytes(settings.state),
        available_memory_bytes=_available_memory_bytes(),
    )


def _openssl() -> Version | None:
    try:
        return components.parse_version(commands.run(["openssl", "version"]))
    except DevclusterError:
        return None


def _go() -> tuple[int, int] | None:
    """The version of Go that builds in a module of ours, a toolchain it fetches included."""
    module = COMPONENTS[0].module
    try:
        found = _GO_VERSION.search(commands.run(["go", "version"], cwd=module, deadline=300))
    except DevclusterError:
        return None
    return (int(found[1]), int(found[2])) if found else None


def _available_memory_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(host.nearest_existing(folder)).free
