"""Everything a user can choose, read once from the environment.

===========================  =====================================================================
WEIGHTLEASE_CACHE            built programs, images, image storage; default
                             ``${XDG_CACHE_HOME:-~/.cache}/weightlease/devcluster``
WEIGHTLEASE_STATE            one cluster's files; default ``/var/lib/weightlease-devcluster``
                             (``-<instance>`` appended for instances above 0)
WEIGHTLEASE_KUBECONFIG       kubeconfig of an existing cluster: use that one, start and stop nothing
WEIGHTLEASE_INSTANCE         0 to 9; moves every default below, so that two clusters can coexist
WEIGHTLEASE_SERVICE_CIDR     default ``10.<96 + instance>.0.0/16``; its first address carries the
                             API server, on port 443
WEIGHTLEASE_POD_CIDR         a /16; default ``10.<244 - instance>.0.0/16``; node N gets ``.N.0/24``
WEIGHTLEASE_ETCD_PORT        and the port above it, on 127.0.0.1; default 12379 + 10 * instance
WEIGHTLEASE_DEBIAN_MIRROR    for the base image; default: the one apt uses
===========================  =====================================================================
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import BadSetting

MAXIMUM_NODES = 20
"""Node indices run from 1 to this; each is the third octet of its pod subnet."""

_DEFAULT_STATE = "/var/lib/weightlease-devcluster"


@dataclass(frozen=True, slots=True)
class Network:
    """Addresses, ports and names that a cluster takes on the host."""

    instance: int
    service_cidr: ipaddress.IPv4Network
    pod_cidr: ipaddress.IPv4Network
    etcd_port: int

    @property
    def api_address(self) -> str:
        """Address of the ``kubernetes`` Service, on ``lo``: there is no kube-proxy to route it."""
        return str(self.service_cidr[1])

    def bridge(self, index: int) -> str:
        """Bridge of node ``index``; at most 15 characters, the kernel's limit."""
        return f"wl{self.instance}n{index}"

    def subnet(self, index: int) -> ipaddress.IPv4Network:
        return list(self.pod_cidr.subnets(new_prefix=24))[index]

    def node_address(self, index: int) -> str:
        """The bridge's own address; kubelet of node ``index`` listens there on standard ports."""
        return str(self.subnet(index)[1])

    def cgroup(self, index: int) -> str:
        """Name of the cgroup, below each root, that holds the pods of node ``index``."""
        return f"weightlease-{self.instance}-node-{index}"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment chose; paths are absolute."""

    cache: Path
    state: Path
    existing_kubeconfig: Path | None
    debian_mirror: str | None
    network: Network

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Settings":
        """Raises BadSetting naming the variable."""
        instance = _integer(environ, "WEIGHTLEASE_INSTANCE", 0, 0, 9)
        state = _DEFAULT_STATE + (f"-{instance}" if instance else "")
        existing = environ.get("WEIGHTLEASE_KUBECONFIG")
        return cls(
            cache=_absolute(environ, "WEIGHTLEASE_CACHE", _default_cache(environ)),
            state=_absolute(environ, "WEIGHTLEASE_STATE", state),
            existing_kubeconfig=Path(existing).absolute() if existing else None,
            debian_mirror=environ.get("WEIGHTLEASE_DEBIAN_MIRROR") or None,
            network=_network(environ, instance),
        )


def _network(environ: Mapping[str, str], instance: int) -> Network:
    service = _cidr(environ, "WEIGHTLEASE_SERVICE_CIDR", f"10.{96 + instance}.0.0/16")
    pods = _cidr(environ, "WEIGHTLEASE_POD_CIDR", f"10.{244 - instance}.0.0/16")
    if pods.prefixlen != 16:
        raise BadSetting(f"WEIGHTLEASE_POD_CIDR is {pods}: give a /16, each node takes a /24 of it")
    if service.prefixlen > 24:
        raise BadSetting(f"WEIGHTLEASE_SERVICE_CIDR is {service}: give a /24 or larger")
    if service.overlaps(pods):
        raise BadSetting(f"WEIGHTLEASE_SERVICE_CIDR {service} overlaps WEIGHTLEASE_POD_CIDR {pods}")
    port = _integer(environ, "WEIGHTLEASE_ETCD_PORT", 12379 + 10 * instance, 1, 65534)
    return Network(instance=instance, service_cidr=service, pod_cidr=pods, etcd_port=port)


def _default_cache(environ: Mapping[str, str]) -> str:
    caches = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME', '~')}/.cache"
    return f"{caches}/weightlease/devcluster"


def _absolute(environ: Mapping[str, str], name: str, default: str) -> Path:
    path = Path(environ.get(name) or default)
    if not path.is_absolute():
        raise BadSetting(f"{name} is {str(path)!r}: give an absolute path")
    return path


def _integer(environ: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = environ.get(name) or str(default)
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise BadSetting(f"{name} is {text!r}: give a whole number from {low} to {high}")
    return int(text)


def _cidr(environ: Mapping[str, str], name: str, default: str) -> ipaddress.IPv4Network:
    text = environ.get(name) or default
    try:
        return ipaddress.IPv4Network(text)
    except ValueError as error:
        raise BadSetting(f"{name} is {text!r}: give an IPv4 network such as {default}") from error
