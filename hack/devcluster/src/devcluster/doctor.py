"""Judges what a machine lacks, and says the way out of each."""

from dataclasses import dataclass
from enum import Enum

from devcluster.components import COMPONENTS
from devcluster.machine import Machine

_GIB = 1024**3
_CACHE_GIB = 6
_STATE_GIB = 2
_MEMORY_GIB = 4
_GO = (1, 26)

PACKAGES = {
    "buildah": "buildah",
    "git": "git",
    "ip": "iproute2",
    "iptables": "iptables",
    "mmdebstrap": "mmdebstrap",
    "mount": "mount",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "promtool": "prometheus",
    "strace": "strace",
    "unshare": "util-linux",
}
"""Debian package of each tool."""

CNI_PACKAGE = "containernetworking-plugins"


class Need(Enum):
    """What a finding stands in the way of."""

    CLUSTER = "up"
    BUILD = "build"
    IMAGES = "images"
    TESTS = "make test"


_NEEDS = {
    "buildah": Need.IMAGES,
    "git": Need.IMAGES,
    "mmdebstrap": Need.IMAGES,
    "promtool": Need.TESTS,
    "strace": Need.TESTS,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is missing."""

    need: Need
    missing: str
    way_out: str


def missing_packages(machine: Machine) -> list[str]:
    """Debian packages that would supply what is missing, sorted."""
    names = {PACKAGES[tool] for tool in PACKAGES if tool not in machine.tools}
    if machine.cni_plugins is None:
        names.add(CNI_PACKAGE)
    return sorted(names)


def findings(machine: Machine) -> list[Finding]:
    """Everything that is missing; empty on a machine where every command works."""
    found = _system(machine)
    for tool in sorted(set(PACKAGES) - machine.tools):
        need = _NEEDS.get(tool, Need.CLUSTER)
        found.append(Finding(need, f"the program {tool}", _install(PACKAGES[tool], machine)))
    if machine.cni_plugins is None:
        found.append(Finding(Need.CLUSTER, "CNI plugins", _install(CNI_PACKAGE, machine)))
    if machine.openssl is not None and machine.openssl < (3, 0, 0):
        version = ".".join(map(str, machine.openssl))
        found.append(
            Finding(Need.CLUSTER, f"openssl 3 (found {version})", "use a newer distribution")
        )
    return found + _builds(machine) + _space(machine)


def _system(machine: Machine) -> list[Finding]:
    if machine.system != "Linux":
        return [Finding(Need.CLUSTER, f"Linux (this is {machine.system})", "use a Linux machine")]
    found = []
    if not machine.is_root:
        found.append(
            Finding(
                Need.CLUSTER,
                "root",
                "run as root (sudo -E), or set WEIGHTLEASE_KUBECONFIG to an existing cluster",
            )
        )
    elif not machine.mount_namespaces:
        found.append(
            Finding(
                Need.CLUSTER,
                "mount namespaces (unshare --mount fails)",
                "run on a virtual machine or in a privileged container",
            )
        )
    if not machine.overlay_filesystem:
        found.append(
            Finding(Need.CLUSTER, "overlayfs in the kernel", "run modprobe overlay as root")
        )
    return found


def _builds(machine: Machine) -> list[Finding]:
    to_build = [component for component in COMPONENTS if component.name not in machine.ready]
    if not to_build:
        return []
    names = ", ".join(f"{component.name} {component.version}" for component in to_build)
    wanted = ".".join(map(str, _GO))
    found = []
    if machine.go is None or machine.go < _GO:
        has = "none found" if machine.go is None else f"found {machine.go[0]}.{machine.go[1]}"
        found.append(
            Finding(
                Need.BUILD,
                f"Go {wanted} ({has}) to build {names}",
                f"install Go {wanted} or newer, or put the programs on PATH",
            )
        )
    if not machine.gcc and any(component.static_cgo for component in to_build):
        found.append(Finding(Need.BUILD, "gcc to build runc", _install("gcc libc6-dev", machine)))
    return found


def _space(machine: Machine) -> list[Finding]:
    found = []
    for name, free, wanted in (
        ("WEIGHTLEASE_CACHE", machine.free_cache_bytes, _CACHE_GIB),
        ("WEIGHTLEASE_STATE", machine.free_state_bytes, _STATE_GIB),
    ):
        if free < wanted * _GIB:
            found.append(
                Finding(
                    Need.CLUSTER,
                    f"{wanted} GiB of free space under {name} ({free / _GIB:.1f} GiB free)",
                    f"free some, or point {name} elsewhere",
                )
            )
    if machine.available_memory_bytes < _MEMORY_GIB * _GIB:
        has = f"{machine.available_memory_bytes / _GIB:.1f}"
        missing = f"{_MEMORY_GIB} GiB of memory ({has} GiB available): nodes keep images in it"
        found.append(Finding(Need.CLUSTER, missing, "end other programs, or use a larger machine"))
    return found


def _install(package: str, machine: Machine) -> str:
    if not machine.has_apt:
        return f"install what Debian calls {package}"
    if machine.is_root:
        return f"run the packages command, or apt-get install {package}"
    return f"as root: apt-get install {package}"
