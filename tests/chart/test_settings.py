"""Whatever the chart tells a process, that process understands; and the two agree on the places."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from helm import CHART, Object, one, workload
from weightlease.api.weight_producer import WeightProducer
from weightlease.names import (
    AGENT_METRICS_PORT,
    OPERATOR_METRICS_PORT,
    SOCKET_PATH,
    VOLUMES_DIRECTORY,
    StorageClass,
)
from weightlease_csi_driver.main import endpoint_of, read_arguments, registration_of
from weightlease_node_agent import settings as agent_settings
from weightlease_node_agent.capacity_settings import DiskCapacity, MemoryCapacity
from weightlease_operator import settings as operator_settings


def environment(objects: list[Object], component: str) -> dict[str, str]:
    """What the long-lived container of that workload is told; downward values are made up."""
    (container,) = workload(objects, component)["spec"]["template"]["spec"]["containers"]
    return {item["name"]: item.get("value", "from-the-node") for item in container["env"]}


def names_of(model: type[BaseModel], prefix: str) -> set[str]:
    """Environment variables that a settings class reads, nested groups included."""
    names: set[str] = set()
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            names |= names_of(inner, f"{prefix}{name}__".upper())
        else:
            names.add(f"{prefix}{name}".upper())
    return names


def test_every_variable_of_the_agent_exists(objects: list[Object]) -> None:
    known = names_of(agent_settings.Settings, "WEIGHTLEASE_")
    assert set(environment(objects, "agent")) <= known


def test_every_variable_of_the_operator_exists(objects: list[Object]) -> None:
    known = names_of(operator_settings.Settings, "WEIGHTLEASE_OPERATOR_")
    assert set(environment(objects, "operator")) <= known


@pytest.fixture
def set_environment(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_all(variables: Mapping[str, str]) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_all


def test_the_agent_starts_from_its_variables(objects: list[Object], set_environment: Any) -> None:
    set_environment(environment(objects, "agent"))
    settings = agent_settings.Settings()
    pod = workload(objects, "agent")["spec"]["template"]["spec"]
    (agent,) = pod["containers"]
    assert settings.node_name == "from-the-node"
    assert agent["ports"] == [{"name": "metrics", "containerPort": settings.http_port}]
    mounts = {mount["mountPath"]: mount for mount in agent["volumeMounts"]}
    made = {argument.partition(":")[2] for argument in pod["initContainers"][0]["command"][4:]}
    folders = {str(each) for each in (settings.socket.parent, settings.volumes) if each is not None}
    assert folders <= mounts.keys()
    assert made == folders | {str(root) for root in settings.roots.values()}
    for storage_class, root in settings.roots.items():
        export = settings.export_of(storage_class)
        assert export is not None
        assert "readOnly" not in mounts[str(root.parent)]
        assert mounts[str(export.parent)]["readOnly"] is True
        assert mounts[str(export.parent)]["name"] == mounts[str(root.parent)]["name"]
        assert export.name == root.name == storage_class


def test_agent_and_driver_meet_in_one_folder(default: list[Object], set_environment: Any) -> None:
    set_environment(environment(default, "agent"))
    assert str(agent_settings.Settings().volumes) == VOLUMES_DIRECTORY
    for component in ("agent", "csi-driver"):
        pod = workload(default, component)["spec"]["template"]["spec"]
        folders = {volume["name"]: volume.get("hostPath") for volume in pod["volumes"]}
        (container,) = pod["containers"]
        mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert folders[mounted[VOLUMES_DIRECTORY]]["path"] == VOLUMES_DIRECTORY
        assert folders[mounted["/var/lib/weightlease"]]["path"] == "/var/lib/weightlease"


def test_the_driver_starts_from_its_arguments(
    rendered: dict[str, list[Object]], set_environment: Any
) -> None:
    for values, kubelet in (("default", "/var/lib/kubelet"), ("everything", "/var/data/kubelet")):
        (driver,) = workload(rendered[values], "csi-driver")["spec"]["template"]["spec"][
            "containers"
        ]
        set_environment(environment(rendered[values], "csi-driver"))
        given = read_arguments(driver["args"])
        assert (given.node_name, given.kubelet) == ("from-the-node", kubelet)
        mounts = {mount["mountPath"] for mount in driver["volumeMounts"]}
        assert {given.volumes, given.store, f"{kubelet}/pods"} <= mounts
        for socket in (endpoint_of(kubelet), registration_of(kubelet)):
            assert posixpath.dirname(socket) in mounts
        assert driver["readinessProbe"]["exec"]["command"][-1] == endpoint_of(kubelet)


def test_jobs_use_the_driver_where_there_is_one(
    rendered: dict[str, list[Object]], set_environment: Any
) -> None:
    for values, volume in (("default", "csi"), ("without-privileges", "hostPath")):
        set_environment(environment(rendered[values], "operator"))
        assert operator_settings.Settings().jobs.agent_volume == volume


def test_the_memory_class_goes_with_its_mount(
    rendered: dict[str, list[Object]], set_environment: Any
) -> None:
    set_environment(environment(rendered["without-privileges"], "agent"))
    assert set(agent_settings.Settings().roots) == {StorageClass.DISK}


def test_limits_and_intervals_reach_the_agent(
    everything: list[Object], set_environment: Any
) -> None:
    set_environment(environment(everything, "agent"))
    settings = agent_settings.Settings()
    assert (settings.limits.connections, settings.limits.body_seconds) == (2048, 90)
    assert settings.intervals.lease_sweep == 2.5


def test_the_operator_starts_from_its_variables(
    everything: list[Object], default: list[Object], set_environment: Any
) -> None:
    set_environment(environment(default, "operator"))
    assert operator_settings.Settings().plan.allow_host_path_sources is False
    election = operator_settings.Settings().election
    assert (election.namespace, election.name) == ("weightlease-system", "weightlease-operator")
    set_environment(environment(everything, "operator"))
    settings = operator_settings.Settings()
    (container,) = one(everything, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"name": "metrics", "containerPort": settings.metrics_port}]
    assert settings.log_level == "DEBUG"
    assert settings.plan.allow_host_path_sources is True
    assert settings.plan.agent_grace_seconds == 60
    assert settings.jobs.scratch_size == "64Gi"
    assert settings.election.lease_seconds == 30
    assert (settings.workers, settings.resync_seconds) == (8, 600.5)


def test_ports_and_the_socket_are_those_of_the_library(everything: list[Object]) -> None:
    services = {
        item["metadata"]["labels"]["app.kubernetes.io/component"]: item["spec"]
        for item in everything
        if item["kind"] == "Service"
    }
    assert services["agent"]["ports"][0]["port"] == AGENT_METRICS_PORT
    assert services["operator"]["ports"][0]["port"] == OPERATOR_METRICS_PORT
    assert {spec["clusterIP"] for spec in services.values()} == {"None"}
    assert str(agent_settings.Settings().socket) == SOCKET_PATH


@pytest.mark.parametrize(
    ("path", "model", "withheld"),
    [
        ("agent.limits", agent_settings.Limits, set()),
        ("agent.intervals", agent_settings.Intervals, set()),
        ("agent.capacity.disk", DiskCapacity, set()),
        ("agent.capacity.memory", MemoryCapacity, set()),
        ("operator.plan", operator_settings.PlanSettings, {"allowHostPathSources"}),
        ("operator.jobs", operator_settings.JobSettings, {"agentVolume", "socketDirectory"}),
        (
            "operator.election",
            operator_settings.ElectionSettings,
            {"namespace", "name", "identity"},
        ),
        (
            "operator.pace",
            operator_settings.Settings,
            {"plan", "jobs", "election", "failpoint", "logLevel", "metricsPort", "bindAddress"},
        ),
    ],
)
def test_values_offer_every_field_of_a_group_of_settings(
    path: str, model: type[BaseModel], withheld: set[str]
) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    for name in path.split("."):
        schema = schema["properties"][name]
    offered = set(schema["properties"])
    assert offered == {to_camel(name) for name in model.model_fields} - withheld


def test_the_default_producer_is_a_valid_resource(objects: list[Object]) -> None:
    producer = WeightProducer.parse(one(objects, "WeightProducer"))
    assert producer.metadata.name == "snapshot"


def test_the_default_producers_identity_never_changes(objects: list[Object]) -> None:
    spec = one(objects, "WeightProducer")["spec"]
    assert spec["producer"] == {
        "id": "weightlease.snapshot",
        "version": "1",
        "implementationFingerprint": "weightlease.snapshot-v1",
        "manifestSchema": "weightlease.snapshot-manifest-v1",
        "restorerSchema": "weightlease.source-files-v1",
    }
    assert spec["sources"] == ["huggingFace", "persistentVolumeClaim", "hostPath"]
    assert spec["representations"] == ["canonical"]


def test_helm_never_deletes_the_producer_before_it_applies_it(objects: list[Object]) -> None:
    annotations = one(objects, "WeightProducer")["metadata"]["annotations"]
    assert set(annotations["helm.sh/hook"].split(",")) >= {"post-install", "post-upgrade"}
    policies = annotations["helm.sh/hook-delete-policy"].split(",")
    assert policies
    assert "before-hook-creation" not in policies
