"""What an administrator says about room reaches the agent, and its pod asks for what it may use."""

from __future__ import annotations

import os
from typing import Any

import pytest

from helm import HelmFailed, Object, render
from weightlease_node_agent.settings import Settings

GIB = 2**30


def agent(**values: Any) -> Object:
    """The agent's DaemonSet."""
    memory = values.pop("memory", {})
    objects = render({"agent": values, "memory": memory})
    (found,) = (
        each
        for each in objects
        if each["kind"] == "DaemonSet" and each["metadata"]["name"].endswith("-agent")
    )
    return found


def container(daemon_set: Object) -> Object:
    (found,) = daemon_set["spec"]["template"]["spec"]["containers"]
    return dict(found)


@pytest.fixture
def settings_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    def read(daemon_set: Object) -> Settings:
        for item in container(daemon_set)["env"]:
            monkeypatch.setenv(item["name"], item.get("value", "node"))
        return Settings()

    for name in list(os.environ):
        if name.startswith("WEIGHTLEASE_"):
            monkeypatch.delenv(name)
    return read


def test_limits_reach_the_agent_as_bytes(settings_of: Any) -> None:
    disk = {
        "budget": "500Gi",
        "namespaceQuota": "1Ti",
        "namespaceQuotas": {"team-a": "300Gi"},
        "minFreePercent": 0,
        "maxArtifact": "7k",
    }
    memory = {"budget": "64Gi", "minAvailable": "1Gi"}
    capacity = {"evict": True, "disk": disk, "memory": memory}
    opened = {"research": {"quota": "10Gi", "expirySeconds": 3600}}
    settings = settings_of(agent(capacity=capacity, unmanaged=opened))
    found = settings.capacity
    assert (found.evict, found.disk.budget, found.disk.max_artifact) == (True, 500 * GIB, 7000)
    assert (found.disk.quota_of("team-a"), found.disk.quota_of("b")) == (300 * GIB, 1024 * GIB)
    assert (found.disk.min_free_percent, found.disk.min_free_inodes_percent) == (0, 7)
    assert (found.memory.budget, found.memory.min_available) == (64 * GIB, GIB)
    assert settings.unmanaged["research"].quota == 10 * GIB


def test_by_default_floors_lie_above_kubelets_and_nothing_is_evicted(settings_of: Any) -> None:
    found = settings_of(agent()).capacity
    assert (found.evict, found.disk.budget, found.memory.budget) == (False, 0, 0)
    assert found.disk.min_free_percent > 15
    assert found.disk.min_free_inodes_percent > 5
    assert settings_of(agent()).unmanaged == {}


@pytest.mark.parametrize(
    ("values", "memory"),
    [
        ({}, "128Mi"),
        ({"capacity": {"memory": {"budget": "64Gi"}}}, str(64 * GIB + 128 * 2**20)),
        (
            {"capacity": {"memory": {"budget": "1G"}}, "resources": {"requests": {"memory": "2G"}}},
            "3000000000",
        ),
        ({"capacity": {"memory": {"budget": "64Gi"}}, "memory": {"enabled": False}}, "128Mi"),
    ],
)
def test_the_budget_of_the_memory_class_is_requested_by_the_agent(
    values: dict[str, Any], memory: str
) -> None:
    assert container(agent(**values))["resources"]["requests"]["memory"] == memory


def test_a_request_that_a_budget_can_t_be_added_to_is_refused() -> None:
    with pytest.raises(HelmFailed, match="no whole number"):
        agent(
            capacity={"memory": {"budget": "1Gi"}},
            resources={"requests": {"memory": "0.5Gi"}},
        )


def test_agents_overlap_unless_that_would_request_the_memory_budget_twice() -> None:
    surge = {"maxSurge": 1, "maxUnavailable": 0}
    assert agent()["spec"]["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": surge}
    budget = {"memory": {"budget": "64Gi"}}
    strategy = agent(capacity=budget)["spec"]["updateStrategy"]
    assert strategy["rollingUpdate"] == {"maxUnavailable": 1}
    chosen = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}
    assert agent(updateStrategy=chosen)["spec"]["updateStrategy"] == chosen
    assert agent(updateStrategy={"type": "OnDelete"})["spec"]["updateStrategy"] == {
        "type": "OnDelete"
    }


def test_two_agents_of_a_node_have_nothing_of_the_host_that_only_one_can_have() -> None:
    pod = agent()["spec"]["template"]["spec"]
    assert not pod.get("hostNetwork")
    assert all("hostPort" not in port for port in container(agent())["ports"])


@pytest.mark.parametrize(
    "values",
    [
        {"capacity": {"disk": {"budget": "1.5Gi"}}},
        {"capacity": {"disk": {"budget": 1000}}},
        {"capacity": {"disk": {"minFreePercent": 91}}},
        {"capacity": {"disk": {"namespaceQuotas": {"Team": "1Gi"}}}},
        {"capacity": {"memory": {"minFreePercent": 1}}},
        {"unmanaged": {"research": {"quota": "10Gi"}}},
        {"unmanaged": {"research": {"quota": "0", "expirySeconds": 60}}},
    ],
)
def test_a_value_that_the_agent_would_refuse_is_refused_by_the_chart(
    values: dict[str, Any],
) -> None:
    with pytest.raises(HelmFailed):
        agent(**values)
