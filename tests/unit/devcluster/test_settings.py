import pytest

from devcluster.errors import BadSetting
from devcluster.settings import MAXIMUM_NODES, Settings


def test_defaults_lie_outside_the_tree_and_need_no_variable() -> None:
    settings = Settings.from_environment({"HOME": "/home/ada"})
    assert str(settings.cache) == "/home/ada/.cache/weightlease/devcluster"
    assert str(settings.state) == "/var/lib/weightlease-devcluster"
    assert settings.existing_kubeconfig is None


def test_the_cache_follows_xdg_and_its_own_variable_wins() -> None:
    assert str(Settings.from_environment({"HOME": "/h", "XDG_CACHE_HOME": "/x"}).cache).startswith(
        "/x/"
    )
    chosen = {"XDG_CACHE_HOME": "/x", "WEIGHTLEASE_CACHE": "/y"}
    assert str(Settings.from_environment(chosen).cache) == "/y"


def test_two_instances_share_no_address_port_name_or_folder() -> None:
    first = Settings.from_environment({"HOME": "/h"})
    second = Settings.from_environment({"HOME": "/h", "WEIGHTLEASE_INSTANCE": "1"})
    assert first.state != second.state
    assert not first.network.pod_cidr.overlaps(second.network.pod_cidr)
    assert not first.network.service_cidr.overlaps(second.network.service_cidr)
    assert abs(first.network.etcd_port - second.network.etcd_port) > 1
    assert first.network.bridge(1) != second.network.bridge(1)
    assert first.network.cgroup(1) != second.network.cgroup(1)


def test_no_two_nodes_share_a_subnet_and_names_fit_the_kernel() -> None:
    network = Settings.from_environment({"HOME": "/h", "WEIGHTLEASE_INSTANCE": "9"}).network
    indices = range(1, MAXIMUM_NODES + 1)
    assert len({network.subnet(index) for index in indices}) == MAXIMUM_NODES
    assert all(len(network.bridge(index)) <= 15 for index in indices)
    assert network.node_address(2) == "10.235.2.1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WEIGHTLEASE_INSTANCE", "10"),
        ("WEIGHTLEASE_INSTANCE", "-1"),
        ("WEIGHTLEASE_STATE", "relative/path"),
        ("WEIGHTLEASE_POD_CIDR", "10.1.0.0/24"),
        ("WEIGHTLEASE_POD_CIDR", "10.1.2.3/16"),
        ("WEIGHTLEASE_POD_CIDR", "10.96.0.0/16"),
        ("WEIGHTLEASE_SERVICE_CIDR", "fd00::/108"),
        ("WEIGHTLEASE_SERVICE_CIDR", "10.96.0.0/28"),
        ("WEIGHTLEASE_ETCD_PORT", "70000"),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_variable(name: str, value: str) -> None:
    with pytest.raises(BadSetting, match=name):
        Settings.from_environment({"HOME": "/h", name: value})


def test_without_a_home_the_cache_must_be_named() -> None:
    with pytest.raises(BadSetting, match="WEIGHTLEASE_CACHE"):
        Settings.from_environment({})
    assert str(Settings.from_environment({"WEIGHTLEASE_CACHE": "/c"}).cache) == "/c"
