"""The CustomResourceDefinitions, made from the models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel

from weightlease.api.base import Resource
from weightlease.api.schema import structural_schema
from weightlease.api.weight_artifact import WeightArtifact
from weightlease.api.weight_node import WeightNode
from weightlease.api.weight_producer import WeightProducer
from weightlease.names import GROUP, VERSION

CATEGORY = "weights"


@dataclass(frozen=True)
class Column:
    """A column of `kubectl get`; a wide one shows with `-o wide` alone."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False
    description: str = ""

    def to_json(self) -> dict[str, Any]:
        column = {"name": self.name, "type": self.type, "jsonPath": self.path}
        if self.description:
            column["description"] = self.description
        return column | ({"priority": 1} if self.wide else {})


@dataclass(frozen=True)
class Definition:
    """What a custom resource is called and how it is listed."""

    model: type[Resource]
    plural: str
    short_name: str
    columns: tuple[Column, ...]
    namespaced: bool = False
    sections: tuple[str, ...] = ("spec",)

    @property
    def kind(self) -> str:
        return self.model.__name__


_AGE = Column("Age", ".metadata.creationTimestamp", type="date")


def _condition(name: str, attribute: str) -> str:
    return f'.status.conditions[?(@.type=="{name}")].{attribute}'


ARTIFACTS = Definition(
    model=WeightArtifact,
    plural="weightartifacts",
    short_name="wa",
    namespaced=True,
    sections=("spec", "status"),
    columns=(
        Column("Ready", _condition("Ready", "status")),
        Column("Reason", _condition("Ready", "reason")),
        Column("Nodes", ".status.nodes.summary", description="nodes ready / nodes chosen"),
        Column("Size", ".status.size"),
        Column("Progress%", ".status.progress.percent", type="integer"),
        Column("Repository", ".spec.source.huggingFace.repo", wide=True),
        Column("Claim", ".spec.source.persistentVolumeClaim.claimName", wide=True),
        Column("Model", ".spec.source.modelId", wide=True),
        Column("Storage", ".spec.storageClass", wide=True),
        Column("Failed", ".status.nodes.failed", type="integer", wide=True),
        _AGE,
    ),
)
PRODUCERS = Definition(
    model=WeightProducer,
    plural="weightproducers",
    short_name="wp",
    columns=(Column("Image", ".spec.image"), Column("Producer", ".spec.producer.id"), _AGE),
)
NODES = Definition(
    model=WeightNode,
    plural="weightnodes",
    short_name="wn",
    sections=("spec", "status"),
    columns=(
        Column("Ready", ".status.ready", description="artifacts ready / artifacts wanted"),
        Column("Leases", ".status.leases", type="integer"),
        Column("Version", ".status.agentVersion"),
        _AGE,
    ),
)
DEFINITIONS = (ARTIFACTS, PRODUCERS, NODES)


def custom_resource_definition(definition: Definition) -> dict[str, Any]:
    """The CustomResourceDefinition as an API object."""
    kind = definition.kind
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _schema(definition)},
        "additionalPrinterColumns": [column.to_json() for column in definition.columns],
    }
    if "status" in definition.sections:
        version["subresources"] = {"status": {}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{definition.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced" if definition.namespaced else "Cluster",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": definition.plural,
                "singular": kind.lower(),
                "shortNames": [definition.short_name],
                "categories": [CATEGORY],
            },
            "versions": [version],
        },
    }


def _schema(definition: Definition) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    fields = definition.model.model_fields
    for section in definition.sections:
        model = fields[section].annotation
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            raise TypeError(f"{definition.kind}.{section} has no model of its own")
        properties[section] = structural_schema(model, defaults=section == "spec")
    schema: dict[str, Any] = {
        "type": "object",
        "description": (definition.model.__doc__ or "").strip(),
        "properties": properties,
    }
    if required := [name for name in definition.sections if fields[name].is_required()]:
        schema["required"] = required
    return schema


class _PlainDumper(yaml.SafeDumper):
    """Writes shared parts out: aliases save nothing that a reader of a CRD would miss."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the base class decides
        return True


def render(definition: Definition) -> str:
    """The definition as a YAML document, the same text for the same models."""
    document = custom_resource_definition(definition)
    text: str = yaml.dump(document, Dumper=_PlainDumper, sort_keys=False, width=100)
    return text
