"""Configuration files and command lines, rendered from plain values; nothing here acts.

Kubernetes' own files are written as JSON, which is YAML too.
"""

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devcluster.layout import CONTAINERD_SOCKET, Layout, NodeLayout
from devcluster.settings import Network

PAUSE_IMAGE = "localhost/weightlease/pause:1"

_KUBELET_STATUS_SECONDS = 4
_NODE_LEASE_SECONDS = 10
_NODE_GRACE_SECONDS = 20
_EVICTION_SECONDS = 10


@dataclass(frozen=True, slots=True)
class HostTraits:
    """What the host's kernel and our rights make different in a node's configuration."""

    cgroup_version: int
    may_lower_oom_scores: bool
    cni_plugins: Path
    runc: Path
    resolv_conf: str


def kubeconfig(*, server: str, ca: bytes, certificate: bytes, key: bytes, user: str) -> str:
    """A self-contained kubeconfig; the last three are PEM."""

    def encoded(pem: bytes) -> str:
        return base64.b64encode(pem).decode()

    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "devcluster",
                "cluster": {"server": server, "certificate-authority-data": encoded(ca)},
            }
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": encoded(certificate),
                    "client-key-data": encoded(key),
                },
            }
        ],
        "contexts": [{"name": "devcluster", "context": {"cluster": "devcluster", "user": user}}],
        "current-context": "devcluster",
    }
    return json.dumps(document, indent=1) + "\n"


def etcd_flags(network: Network, layout: Layout) -> list[str]:
    client = f"http://127.0.0.1:{network.etcd_port}"
    peer = f"http://127.0.0.1:{network.etcd_port + 1}"
    return [
        f"--data-dir={layout.etcd}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        # The data dies with the cluster.
        "--unsafe-no-fsync",
    ]


def apiserver_flags(network: Network, layout: Layout) -> list[str]:
    pki = layout.pki
    return [
        f"--etcd-servers=http://127.0.0.1:{network.etcd_port}",
        f"--bind-address={network.api_address}",
        f"--advertise-address={network.api_address}",
        "--secure-port=443",
        f"--service-cluster-ip-range={network.service_cidr}",
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/kube-apiserver.crt",
        f"--tls-private-key-file={pki}/kube-apiserver.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/kubelet-client.crt",
        f"--kubelet-client-key={pki}/kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={pki}/service-accounts.pub",
        f"--service-account-signing-key-file={pki}/service-accounts.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        # Webhooks behind a Service are called at their endpoints: nothing routes cluster IPs.
        "--enable-aggregator-routing=true",
        "--allow-privileged=true",
        f"--default-not-ready-toleration-seconds={_EVICTION_SECONDS}",
        f"--default-unreachable-toleration-seconds={_EVICTION_SECONDS}",
        "--profiling=false",
    ]


def controller_manager_flags(layout: Layout) -> list[str]:
    pki = layout.pki
    return [
        f"--kubeconfig={layout.component_kubeconfig('kube-controller-manager')}",
        f"--service-account-private-key-file={pki}/service-accounts.key",
        f"--root-ca-file={pki}/ca.crt",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--secure-port=0",
        # It would make its default folder, below /usr.
        f"--flex-volume-plugin-dir={layout.state}/volume-plugins",
        "--node-monitor-period=2s",
        f"--node-monitor-grace-period={_NODE_GRACE_SECONDS}s",
        "--profiling=false",
    ]


def scheduler_flags(layout: Layout) -> list[str]:
    return [
        f"--kubeconfig={layout.component_kubeconfig('kube-scheduler')}",
        "--leader-elect=false",
        "--secure-port=0",
        "--profiling=false",
    ]


def kubelet_flags(network: Network, node: NodeLayout) -> list[str]:
    return [
        f"--config={node.kubelet_config}",
        f"--kubeconfig={node.kubelet_kubeconfig}",
        "--root-dir=/var/lib/kubelet",
        f"--hostname-override={node.name}",
        f"--node-ip={network.node_address(node.index)}",
    ]


def kubelet(network: Network, node: NodeLayout, layout: Layout, traits: HostTraits) -> str:
    """KubeletConfiguration (kubelet.config.k8s.io/v1beta1)."""
    address = network.node_address(node.index)
    pki = layout.pki
    document: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "healthzBindAddress": address,
        "tlsCertFile": f"{pki}/{node.name}.crt",
        "tlsPrivateKeyFile": f"{pki}/{node.name}.key",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{network.cgroup(node.index)}",
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        # No cluster DNS: without an address for it, pods take the host's resolvers.
        "clusterDomain": "cluster.local",
        "resolvConf": traits.resolv_conf,
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "serializeImagePulls": False,
        # A test host's disk may be nearly full; images that were imported must not be collected.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
        # Short periods make a dead node visible to tests within half a minute.
        "nodeStatusUpdateFrequency": f"{_KUBELET_STATUS_SECONDS}s",
        "nodeLeaseDurationSeconds": _NODE_LEASE_SECONDS,
        "syncFrequency": "10s",
    }
    if traits.cgroup_version == 1:
        document["failCgroupV1"] = False
    if not traits.may_lower_oom_scores:
        document["featureGates"] = {"KubeletInUserNamespace": True}
        document["oomScoreAdj"] = 0
    return json.dumps(document, indent=1) + "\n"


_CONTAINERD = """\
version = 3
root = {root}
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.nri.v1.nri",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
]

[grpc]
  address = {socket}

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = {pause}

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = {restrict}
  disable_apparmor = true
  netns_mounts_under_state_dir = true

[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = [{plugins}]
  conf_dir = {conf}

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = {runc}
  SystemdCgroup = false
"""


def containerd(node: NodeLayout, traits: HostTraits) -> str:
    """Configuration of containerd, version 3 (containerd 2.x)."""
    return _CONTAINERD.format(
        # TOML's basic strings follow JSON's escapes.
        root=json.dumps(str(node.containerd_root)),
        socket=json.dumps(CONTAINERD_SOCKET),
        pause=json.dumps(PAUSE_IMAGE),
        restrict=json.dumps(not traits.may_lower_oom_scores),
        plugins=json.dumps(str(traits.cni_plugins)),
        conf=json.dumps(str(node.cni)),
        runc=json.dumps(str(traits.runc)),
    )


def cni(network: Network, node: NodeLayout) -> str:
    """A bridge and a subnet per node; masquerading is the host's (``host.allow_forwarding``)."""
    bridge = {
        "type": "bridge",
        "bridge": network.bridge(node.index),
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": str(network.subnet(node.index))}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    document = {"cniVersion": "0.4.0", "name": network.cgroup(node.index), "plugins": [bridge]}
    return json.dumps(document, indent=1) + "\n"
