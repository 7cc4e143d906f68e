"""values.yaml and its schema agree, and wrong values are refused before anything starts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from helm import CHART, HelmFailed, render

WRONG: dict[str, dict[str, Any]] = {
    "a misspelt group": {"agnet": {}},
    "a misspelt field": {"agent": {"nodeselector": {}}},
    "a mistyped switch": {"memory": {"enabled": "yes"}},
    "a size without a unit": {"memory": {"size": "64"}},
    "a size of nothing": {"memory": {"size": "0%"}},
    "all of the node's memory": {"memory": {"size": "100%"}},
    "a size that is a script": {"memory": {"size": "1Gi,uid=0"}},
    "an unknown huge page policy": {"memory": {"hugePages": "sometimes"}},
    "a relative store": {"store": {"hostPath": "weightlease"}},
    "the host's root as store": {"store": {"hostPath": "/"}},
    "a system folder as store": {"store": {"hostPath": "/etc/weightlease"}},
    "all variable data as store": {"store": {"hostPath": "/var/lib"}},
    "kubelet's folder as store": {"store": {"hostPath": "/var/lib/kubelet/weightlease"}},
    "a store that climbs": {"store": {"hostPath": "/data/../etc/weightlease"}},
    "a mount that is not read-only": {"store": {"recursiveReadOnly": "Disabled"}},
    "no operator": {"operator": {"replicas": 0}},
    "an unknown log level": {"operator": {"logLevel": "loud"}},
    "an unknown pull policy": {"images": {"operator": {"pullPolicy": "Sometimes"}}},
    "a shortened digest": {"images": {"operator": {"digest": "sha256:abcd"}}},
    "an image with a scheme": {"images": {"operator": {"repository": "https://x/y"}}},
    "a limit that does not exist": {"agent": {"limits": {"connection": 3}}},
    "a limit of nothing": {"agent": {"limits": {"connections": 0}}},
    "a negative interval": {"agent": {"intervals": {"leaseSweep": -1}}},
    "an unknown toleration": {"agent": {"tolerations": [{"operator": "Maybe"}]}},
    "a resource that is no quantity": {"agent": {"resources": {"limits": {"memory": "much"}}}},
    "an interval without a unit": {"monitoring": {"podMonitor": {"interval": "30"}}},
    "an empty network peer": {"networkPolicy": {"metricsFrom": [{}]}},
    "a port out of range": {"networkPolicy": {"apiServerPorts": [70000]}},
    "a relative kubelet": {"csi": {"kubeletPath": "kubelet"}},
    "a kubelet that climbs": {"csi": {"kubeletPath": "/var/lib/../kubelet"}},
    "no driver at a time": {"csi": {"maxUnavailable": 0}},
    "a name with capitals": {"fullnameOverride": "WeightLease"},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_refused_by_the_schema(name: str) -> None:
    with pytest.raises(HelmFailed, match="values don't meet the specifications of the schema"):
        render(WRONG[name])


def test_the_schema_knows_every_value_and_values_name_every_field() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert list(differences(schema, schema, values, "")) == []


OPTIONAL = {f"agent.updateStrategy.rollingUpdate.max{what}" for what in ("Surge", "Unavailable")}
OPEN = re.compile(r"\.(resources|tolerations|affinity|limits|intervals|plan|jobs|election|pace)$")


def differences(
    root: dict[str, Any], schema: dict[str, Any], values: Any, path: str
) -> Iterator[str]:
    """Yields the fields that schema or values lack; groups that users fill are not entered."""
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if not isinstance(values, dict) or OPEN.search(path):
        return
    if "properties" not in schema:
        return
    known = {f"{path}.{name}".lstrip(".") for name in schema["properties"]} - OPTIONAL
    named = {f"{path}.{name}".lstrip(".") for name in values}
    yield from sorted(known ^ named)
    for name in schema["properties"].keys() & values.keys():
        yield from differences(
            root, schema["properties"][name], values[name], f"{path}.{name}".lstrip(".")
        )


def test_every_group_of_the_schema_refuses_what_it_does_not_know() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    opened = [
        sorted(group["properties"])
        for group in groups(schema)
        if group.get("additionalProperties") is not False
    ]
    # Helm itself puts what a parent chart shares under `global`
    assert opened == [["imageRegistry"]]


def groups(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("type") == "object" and "properties" in schema:
            yield schema
        for inner in schema.values():
            yield from groups(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from groups(inner)


def test_no_line_of_values_is_longer_than_the_projects_lines() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    assert [line for line in lines if len(line) > 100] == []
