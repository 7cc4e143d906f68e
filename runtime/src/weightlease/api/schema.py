"""Turn a pydantic model into the structural schema that Kubernetes accepts.

What differs between the two:

    pydantic                          structural schema
    $ref into $defs                   inlined
    anyOf [T, null]                   T, and the field is not required
    title                             dropped; descriptions stay
    additionalProperties: false       dropped: the API server treats unknown fields itself
    exclusiveMinimum: n (a number)    minimum: n, exclusiveMinimum: true
    default_factory                   its value, so that the API server can apply it
    a default of a status field       dropped: a status has an author, nobody fills it in

Keys that start with x-kubernetes- pass through from json_schema_extra.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

Schema = dict[str, Any]

_DROPPED = frozenset({"title", "$defs", "default"})
_EXCLUSIVE = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}


class UnsupportedSchemaError(ValueError):
    """A model that has no structural schema."""


def structural_schema(model: type[BaseModel], *, defaults: bool) -> Schema:
    """The schema of one model; with `defaults`, those of its fields too.

    Raises:
        UnsupportedSchemaError: a union, or another form that Kubernetes would refuse.

    """
    document = model.model_json_schema(
        by_alias=True, mode="validation", schema_generator=_WithFactories
    )
    return _Converter(document.get("$defs", {}), keep_defaults=defaults).convert(document)


class _WithFactories(GenerateJsonSchema):
    """Emits what default factories make, which pydantic leaves out."""

    def default_schema(self, schema: Any) -> dict[str, Any]:
        factory = schema.get("default_factory")
        if factory is not None and not schema.get("default_factory_takes_data"):
            schema = {**schema, "default": factory()}
        return super().default_schema(schema)


class _Converter:
    """One conversion, with the definitions that references point into."""

    def __init__(self, definitions: dict[str, Schema], *, keep_defaults: bool) -> None:
        self._definitions = definitions
        self._keep_defaults = keep_defaults

    def convert(self, schema: Schema) -> Schema:
        schema = self._resolved(schema)
        if schema.get("x-kubernetes-int-or-string"):
            return {name: value for name, value in schema.items() if name not in _DROPPED}
        if "anyOf" in schema or "oneOf" in schema or "allOf" in schema:
            raise UnsupportedSchemaError(f"a structural schema has no unions: {schema}")
        result = {name: value for name, value in schema.items() if name not in _DROPPED}
        for exclusive, bound in _EXCLUSIVE.items():
            if exclusive in result:
                result[bound] = result[exclusive]
                result[exclusive] = True
        if "properties" in result:
            result["properties"] = {
                name: self._property(value) for name, value in result["properties"].items()
            }
        if "items" in result:
            result["items"] = self.convert(result["items"])
        additional = result.pop("additionalProperties", False)
        if isinstance(additional, dict):
            result["additionalProperties"] = self.convert(additional)
        return result

    def _property(self, schema: Schema) -> Schema:
        result = self.convert(schema)
        default = _without_empty(schema.get("default"))
        if self._keep_defaults and default is not None:
            result["default"] = default
        return result

    def _resolved(self, schema: Schema) -> Schema:
        """Follows references and drops null alternatives; what stands beside them wins."""
        while True:
            if "$ref" in schema:
                target = self._definitions[schema["$ref"].removeprefix("#/$defs/")]
                schema = {**target, **{k: v for k, v in schema.items() if k != "$ref"}}
            elif (inner := _the_one_that_is_not_null(schema)) is not None:
                schema = {**inner, **{k: v for k, v in schema.items() if k != "anyOf"}}
            else:
                return schema


def _the_one_that_is_not_null(schema: Schema) -> Schema | None:
    options = schema.get("anyOf", ())
    real: list[Schema] = [option for option in options if option.get("type") != "null"]
    return real[0] if len(real) == 1 and len(options) > 1 else None


def _without_empty(value: Any) -> Any:
    """A default without nulls and empty parts; None when nothing is left.

    An empty list or map means the same as an absent one, and would only clutter a user's object.
    """
    if isinstance(value, dict):
        parts = {name: _without_empty(part) for name, part in value.items()}
        return {name: part for name, part in parts.items() if part is not None} or None
    if isinstance(value, list):
        return [_without_empty(item) for item in value] or None
    return None if value == "" else value
