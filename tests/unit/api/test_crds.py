"""The CRDs in the tree are those of the models, and structural."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, Field

from weightlease.api.crd import DEFINITIONS, Definition, custom_resource_definition, render
from weightlease.api.generate import write
from weightlease.api.schema import UnsupportedSchemaError, structural_schema
from weightlease.api.weight_artifact import ResourceRequirements, WeightArtifact

ROOT = Path(__file__).parents[3]
KINDS = pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda each: each.kind)


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Every mapping below a value."""
    if isinstance(value, dict):
        yield value
        for part in value.values():
            yield from nodes(part)
    if isinstance(value, list):
        for part in value:
            yield from nodes(part)


def spec_of(definition: Definition) -> dict[str, Any]:
    (version,) = custom_resource_definition(definition)["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


@KINDS
def test_the_file_in_the_tree_is_current(definition: Definition) -> None:
    assert (ROOT / "crds" / f"{definition.plural}.yaml").read_text() == render(definition)


def test_generating_removes_the_file_of_a_definition_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "weightghosts.yaml").write_text("")
    write(str(tmp_path))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {path.name for path in (ROOT / "crds").iterdir()}


@KINDS
def test_a_schema_holds_nothing_that_kubernetes_refuses(definition: Definition) -> None:
    for node in nodes(spec_of(definition)):
        assert not {"$ref", "$defs", "title", "oneOf", "allOf"} & node.keys(), node
        assert "anyOf" not in node or node.get("x-kubernetes-int-or-string"), node
        assert not ({"properties", "additionalProperties"} <= node.keys()), node


@KINDS
def test_rendered_yaml_is_the_definition_and_has_no_aliases(definition: Definition) -> None:
    text = render(definition)
    assert yaml.safe_load(text) == custom_resource_definition(definition)
    assert "&id" not in text


def test_only_a_spec_has_defaults() -> None:
    schema = spec_of(DEFINITIONS[0])["properties"]
    assert any("default" in node for node in nodes(schema["spec"]))
    assert not any("default" in node for node in nodes(schema["status"]))


def test_the_schemas_defaults_are_the_models() -> None:
    spec: dict[str, Any] = {"source": {"hostPath": {"path": "/m"}}}
    defaults = spec_of(DEFINITIONS[0])["properties"]["spec"]["properties"]
    filled = spec | {
        name: value["default"] for name, value in defaults.items() if "default" in value
    }
    assert WeightArtifact.parse({"spec": spec}).spec == WeightArtifact.parse({"spec": filled}).spec


def test_a_whole_number_is_a_quantity() -> None:
    requirements = ResourceRequirements.model_validate({"limits": {"cpu": 2, "memory": "1Gi"}})
    assert requirements.limits == {"cpu": "2", "memory": "1Gi"}


class Exclusive(BaseModel):
    size: float = Field(gt=1)


class Union(BaseModel):
    either: int | str


def test_a_numeric_exclusive_bound_becomes_a_flag() -> None:
    size = structural_schema(Exclusive, defaults=True)["properties"]["size"]
    assert size == {"type": "number", "minimum": 1.0, "exclusiveMinimum": True}


def test_a_union_is_refused_rather_than_guessed() -> None:
    with pytest.raises(UnsupportedSchemaError):
        structural_schema(Union, defaults=True)
