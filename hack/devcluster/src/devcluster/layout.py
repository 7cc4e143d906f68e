"""Where a cluster keeps its files.

::

    <state>/
      lock                     flock of the one command that changes the cluster
      cluster.json             what was taken on the host (see ``record``)
      admin.kubeconfig
      pki/                     CA, one key pair per component and node
      etcd/
      logs/<component>.log     etcd, kube-apiserver, kube-controller-manager, kube-scheduler
      pids/<process>.json      pid and start time (see ``processes``)
      nodes/<name>/
        containerd.toml  kubelet.json  kubelet.kubeconfig  cni/10-bridge.conflist
        containerd.log   kubelet.log   complete
        containerd/            image and snapshot stores: in the node, a tmpfs of its own
        host/<n>/              bound over the paths of BOUND_PATHS inside the node
"""

from dataclasses import dataclass
from pathlib import Path

BOUND_PATHS = (
    "/var/lib/kubelet",
    "/var/lib/weightlease",
    "/run/weightlease",
    "/run/weightlease-csi",
    "/run/containerd",
    "/var/log/pods",
    "/var/log/containers",
    "/var/lib/cni",
)
"""Paths that each node sees as its own; elsewhere a node sees the host."""

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
"""As seen inside a node."""


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """Files of one node, as the host sees them."""

    name: str
    index: int
    root: Path

    @property
    def containerd_config(self) -> Path:
        return self.root / "containerd.toml"

    @property
    def containerd_root(self) -> Path:
        return self.root / "containerd"

    @property
    def cni(self) -> Path:
        return self.root / "cni"

    @property
    def kubelet_config(self) -> Path:
        return self.root / "kubelet.json"

    @property
    def kubelet_kubeconfig(self) -> Path:
        return self.root / "kubelet.kubeconfig"

    @property
    def complete(self) -> Path:
        """Exists once the node was started whole; a start that was cut short leaves none."""
        return self.root / "complete"

    def log(self, program: str) -> Path:
        return self.root / f"{program}.log"

    def behind(self, bound: str) -> Path:
        """The host folder that the node sees at ``bound``, one of BOUND_PATHS."""
        return self.root / "host" / bound.strip("/").replace("/", "-")


@dataclass(frozen=True, slots=True)
class Layout:
    """Files of one cluster."""

    state: Path

    @property
    def lock(self) -> Path:
        return self.state / "lock"

    @property
    def record(self) -> Path:
        return self.state / "cluster.json"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "admin.kubeconfig"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def pids(self) -> Path:
        return self.state / "pids"

    @property
    def etcd(self) -> Path:
        return self.state / "etcd"

    @property
    def nodes(self) -> Path:
        return self.state / "nodes"

    def node(self, name: str, index: int) -> NodeLayout:
        return NodeLayout(name=name, index=index, root=self.nodes / name)

    def component_kubeconfig(self, component: str) -> Path:
        return self.pki / f"{component}.kubeconfig"
