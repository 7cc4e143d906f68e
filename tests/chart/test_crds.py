"""Helm installs the definitions of all kinds that the chart's roles and hooks name."""

from __future__ import annotations

from helm import CHART, Object, helm, one
from weightlease.names import GROUP, VERSION


def test_helm_installs_every_definition() -> None:
    text = helm("show", "crds", str(CHART))
    plurals = ("weightartifacts", "weightnodes", "weightproducers")
    assert [name for name in plurals if f"name: {name}.{GROUP}" not in text] == []


def test_roles_name_resources_that_are_defined(default: list[Object]) -> None:
    defined = {path.stem for path in (CHART / "crds").iterdir()}
    named = {
        resource.partition("/")[0]
        for item in default
        if item["kind"] == "ClusterRole"
        for rule in item["rules"]
        if GROUP in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert named == defined
    assert one(default, "WeightProducer")["apiVersion"] == f"{GROUP}/{VERSION}"
