import base64
import dataclasses
import json
import tomllib
from pathlib import Path

import pytest

from devcluster import configuration
from devcluster.configuration import HostTraits
from devcluster.layout import BOUND_PATHS, Layout
from devcluster.nodes import namespace_script
from devcluster.settings import Settings

NETWORK = Settings.from_environment({"HOME": "/h"}).network
LAYOUT = Layout(Path("/state"))
NODE = LAYOUT.node("node-2", 2)
TRAITS = HostTraits(
    cgroup_version=2,
    may_lower_oom_scores=True,
    cni_plugins=Path("/usr/lib/cni"),
    runc=Path('/odd "name"/runc'),
    resolv_conf="/etc/resolv.conf",
)


def test_containerd_reads_back_every_value_it_was_given() -> None:
    document = tomllib.loads(configuration.containerd(NODE, TRAITS))
    assert document["root"] == "/state/nodes/node-2/containerd"
    runtime = document["plugins"]["io.containerd.cri.v1.runtime"]
    runc = runtime["containerd"]["runtimes"]["runc"]["options"]
    assert runc["BinaryName"] == '/odd "name"/runc'
    assert runtime["restrict_oom_score_adj"] is False
    images = document["plugins"]["io.containerd.cri.v1.images"]
    assert images["pinned_images"]["sandbox"] == configuration.PAUSE_IMAGE


def test_without_the_right_to_lower_oom_scores_kubelet_and_containerd_do_not_try() -> None:
    traits = dataclasses.replace(TRAITS, may_lower_oom_scores=False)
    kubelet = json.loads(configuration.kubelet(NETWORK, NODE, LAYOUT, traits))
    assert kubelet["featureGates"] == {"KubeletInUserNamespace": True}
    containerd = tomllib.loads(configuration.containerd(NODE, traits))
    assert containerd["plugins"]["io.containerd.cri.v1.runtime"]["restrict_oom_score_adj"] is True


@pytest.mark.parametrize(("version", "expected"), [(1, False), (2, None)])
def test_only_cgroup_version_1_needs_the_kubelets_permission(
    version: int, expected: bool | None
) -> None:
    traits = dataclasses.replace(TRAITS, cgroup_version=version)
    kubelet = json.loads(configuration.kubelet(NETWORK, NODE, LAYOUT, traits))
    assert kubelet.get("failCgroupV1") is expected


def test_a_kubelet_admits_nobody_without_a_certificate_or_a_checked_token() -> None:
    kubelet = json.loads(configuration.kubelet(NETWORK, NODE, LAYOUT, TRAITS))
    assert kubelet["authentication"]["anonymous"]["enabled"] is False
    assert kubelet["authorization"]["mode"] == "Webhook"


def test_kubelets_differ_in_address_cgroup_and_certificate() -> None:
    nodes = [LAYOUT.node(f"node-{index}", index) for index in (1, 2)]
    first, second = (
        json.loads(configuration.kubelet(NETWORK, node, LAYOUT, TRAITS)) for node in nodes
    )
    for key in ("address", "healthzBindAddress", "cgroupRoot", "tlsCertFile"):
        assert first[key] != second[key]


def test_the_api_server_restricts_nodes_and_serves_at_the_service_address() -> None:
    flags = configuration.apiserver_flags(NETWORK, LAYOUT)
    assert "--authorization-mode=Node,RBAC" in flags
    assert "--enable-admission-plugins=NodeRestriction" in flags
    assert "--bind-address=10.96.0.1" in flags


def test_a_bridge_hands_out_addresses_of_its_nodes_subnet_alone() -> None:
    plugin = json.loads(configuration.cni(NETWORK, NODE))["plugins"][0]
    assert plugin["bridge"] == "wl0n2"
    assert plugin["ipam"]["ranges"] == [[{"subnet": "10.244.2.0/24"}]]


def test_a_kubeconfig_carries_its_credentials_and_verifies_the_server() -> None:
    text = configuration.kubeconfig(
        server="https://10.96.0.1:443", ca=b"CA", certificate=b"CERT", key=b"KEY", user="admin"
    )
    document = json.loads(text)
    cluster = document["clusters"][0]["cluster"]
    assert base64.b64decode(cluster["certificate-authority-data"]) == b"CA"
    assert "insecure-skip-tls-verify" not in cluster
    user = document["users"][0]["user"]
    assert base64.b64decode(user["client-key-data"]) == b"KEY"


def test_a_namespace_binds_every_path_before_it_shares_its_root_and_says_ready() -> None:
    lines = namespace_script(NODE, Path("/state/a ready file")).splitlines()
    assert lines[0] == "mount --make-rprivate /"
    binds = [line.split()[-1] for line in lines if line.startswith("mount --bind")]
    assert binds == list(BOUND_PATHS)
    shared = lines.index("mount --make-rshared /")
    assert all(lines.index(line) < shared for line in lines if "--bind" in line)
    assert lines[shared + 1 :] == [": > '/state/a ready file'", "exec sleep infinity"]
