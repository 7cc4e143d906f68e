"""What the chart renders is valid Kubernetes, and complete."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from helm import CHART, HelmFailed, Object, helm, one, pod_templates, render, workload

OURS = {"WeightProducer", "PodMonitor", "PrometheusRule"}


def test_lint_finds_nothing() -> None:
    helm("lint", "--strict", str(CHART))


@pytest.mark.parametrize("version", ["1.33", "1.37"])
def test_every_object_passes_the_strict_schema(objects: list[Object], version: str) -> None:
    known = [item for item in objects if item["kind"] not in OURS]
    assert known
    for item in known:
        kubernetes_validate.validate(item, version, strict=True)


def test_every_object_says_what_it_belongs_to(objects: list[Object]) -> None:
    for item in objects:
        labels = item["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "weightlease"
        assert labels["app.kubernetes.io/instance"] == "weightlease"


def test_no_two_objects_share_a_name(objects: list[Object]) -> None:
    names = [(item["kind"], item["metadata"]["name"]) for item in objects]
    assert sorted(names) == sorted(set(names))


def test_a_release_of_another_name_renders_the_same_kinds(default: list[Object]) -> None:
    renamed = render(release="gpu-pool", namespace="elsewhere")
    assert [item["kind"] for item in renamed] == [item["kind"] for item in default]
    assert workload(renamed, "agent")["metadata"]["name"] == "gpu-pool-weightlease-agent"
    namespaces = {item["metadata"].get("namespace", "elsewhere") for item in renamed}
    assert namespaces == {"elsewhere"}


def test_bindings_name_the_accounts_that_pods_use(objects: list[Object]) -> None:
    used = {
        template["spec"]["serviceAccountName"]
        for _, template in pod_templates(objects)
        if template["spec"].get("automountServiceAccountToken", True)
    }
    made = {item["metadata"]["name"] for item in objects if item["kind"] == "ServiceAccount"}
    bound = {
        subject["name"]
        for item in objects
        if item["kind"] == "ClusterRoleBinding"
        for subject in item["subjects"]
    }
    assert used == made == bound


def test_services_and_monitors_select_exactly_one_workload(everything: list[Object]) -> None:
    pods = [template["metadata"]["labels"] for _, template in pod_templates(everything)]
    selectors = [item["spec"]["selector"] for item in everything if item["kind"] == "Service"] + [
        item["spec"]["selector"]["matchLabels"]
        for item in everything
        if item["kind"] == "PodMonitor"
    ]
    assert len(selectors) == 4
    for selector in selectors:
        assert sum(selector.items() <= labels.items() for labels in pods) == 1


def test_images_come_from_the_mirror_by_tag_or_digest(rendered: dict[str, list[Object]]) -> None:
    mirrored = rendered["mirrored"]
    prefix = "registry.example.com:5000/mirror/weightlease"
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    images = {
        container["image"]
        for _, template in pod_templates(mirrored)
        for part in ("initContainers", "containers")
        for container in template["spec"].get(part, [])
    }
    assert images == {
        f"{prefix}/operator:1.2.3",
        f"{prefix}/node-agent@sha256:{'ab' * 32}",
        f"{prefix}/csi-driver:{version}",
    }
    producer = one(mirrored, "WeightProducer")["spec"]
    assert producer["image"] == f"{prefix}/producer:{version}"
    assert producer["imagePullPolicy"] == "Always"


def test_two_operators_are_spread_and_never_both_disrupted(default: list[Object]) -> None:
    spec = one(default, "Deployment")["spec"]
    assert spec["replicas"] == 2
    (spread,) = spec["template"]["spec"]["topologySpreadConstraints"]
    labels = spec["template"]["metadata"]["labels"]
    assert spread["labelSelector"]["matchLabels"].items() <= labels.items()
    budget = one(default, "PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"] == spec["selector"]["matchLabels"]


def test_a_single_operator_has_no_budget_that_would_block_a_drain() -> None:
    kinds = [item["kind"] for item in render({"operator": {"replicas": 1}})]
    assert "PodDisruptionBudget" not in kinds


def test_agents_run_on_tainted_nodes_by_default(default: list[Object]) -> None:
    spec = workload(default, "agent")["spec"]["template"]["spec"]
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["priorityClassName"] == "system-node-critical"


def test_monitors_without_their_definition_are_refused_with_the_way_out() -> None:
    with pytest.raises(HelmFailed, match="needs the PodMonitor CRD"):
        render({"monitoring": {"podMonitor": {"enabled": True}}})
    with pytest.raises(HelmFailed, match="needs the PrometheusRule CRD"):
        render({"monitoring": {"prometheusRule": {"enabled": True}}})


def test_the_package_holds_the_definitions_and_the_files(tmp_path: Path) -> None:
    helm("package", str(CHART), "--destination", str(tmp_path))
    (archive,) = tmp_path.glob("weightlease-*.tgz")
    listing = subprocess.run(
        ["tar", "tzf", str(archive)], check=True, capture_output=True, text=True
    ).stdout.split()
    wanted = [path for path in CHART.rglob("*") if path.is_file() and path.name != ".helmignore"]
    missing = {f"weightlease/{path.relative_to(CHART)}" for path in wanted} - set(listing)
    assert missing == set()


def notes(values: dict[str, Any]) -> str:
    return helm("install", "x", str(CHART), "--dry-run=client", "--namespace", "ns", values=values)


def test_notes_name_the_next_steps_and_what_may_stop_the_pods() -> None:
    text = notes({})
    assert "kubectl -n ns rollout status daemonset/x-weightlease-agent" in text
    assert "kubectl wait --for=condition=Ready weightartifact/" in text
    assert "kubectl label namespace ns pod-security.kubernetes.io/enforce=privileged" in text
    assert "are charged to the agent" not in text


def test_notes_warn_of_a_memory_limit_that_the_tmpfs_can_reach() -> None:
    limited: dict[str, Any] = {"agent": {"resources": {"limits": {"memory": "2Gi"}}}}
    assert "agent.resources.limits.memory is 2Gi" in notes(limited)
    assert "are charged to the agent" not in notes(limited | {"memory": {"enabled": False}})
