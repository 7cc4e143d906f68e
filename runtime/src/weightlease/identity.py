"""The exact representation asked for, and the key that names it.

    key = sha256(canonical JSON of the identity), 64 lowercase hex digits

    {"schema_version": 1,
     "source":         {"model_id", "revision", "fingerprint", "metadata"},
     "component":      {"name", "ownership", "metadata"},
     "representation": {"name", "dtype", "metadata"},
     "layout":         {"name", "tensor_parallel_size", "tensor_parallel_rank",
                        "sequence_parallel_size", "sequence_parallel_backend", "metadata"},
     "adaptation":     {"kind", "fingerprint", "metadata"},
     "producer":       {"producer_id", "version", "implementation_fingerprint",
                        "manifest_schema", "restorer_schema"}}

The field set is the Host Weight Runtime's. What never enters: DP coordinate, SP rank, device,
transfer mode, store path. Golden vectors in tests/contract freeze the bytes.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from weightlease.canonical import canonical_json, sha256_hex
from weightlease.errors import IdentityError

SCHEMA_VERSION = 1
_KEY = re.compile(r"[0-9a-f]{64}")


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One group of identity fields: no empty text, metadata that is deterministic JSON."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, str):
                _require_text(f"{type(self).__name__}.{name}", value)
            elif isinstance(value, dict):
                # A private copy: a caller that keeps the original cannot change the key later.
                msgspec.structs.force_setattr(self, name, _frozen_copy(name, value))


class SourceIdentity(_Part, frozen=True):
    """An immutable canonical checkpoint."""

    model_id: str
    revision: str
    fingerprint: str
    metadata: dict[str, Any] = {}


class ComponentIdentity(_Part, frozen=True):
    """Which part of the source, and which boundary of it this artifact owns."""

    name: str
    ownership: str
    metadata: dict[str, Any] = {}


class Representation(_Part, frozen=True):
    """How values are stored: name, dtype and what the pair leaves open."""

    name: str
    dtype: str
    metadata: dict[str, Any] = {}


class Layout(_Part, frozen=True):
    """The final tensor layout with the parallel coordinates that change bytes or ownership."""

    name: str
    tensor_parallel_size: int = 1
    tensor_parallel_rank: int = 0
    sequence_parallel_size: int = 1
    sequence_parallel_backend: str = "none"
    metadata: dict[str, Any] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tensor_parallel_size < 1 or self.sequence_parallel_size < 1:
            raise IdentityError("layout parallel sizes must be at least 1")
        if not 0 <= self.tensor_parallel_rank < self.tensor_parallel_size:
            raise IdentityError(
                f"layout.tensor_parallel_rank {self.tensor_parallel_rank} is outside "
                f"tensor_parallel_size {self.tensor_parallel_size}"
            )


class Adaptation(_Part, frozen=True):
    """A statically merged adapter, or the base weights. Dynamic overlays have no identity."""

    kind: str = "base"
    fingerprint: str | None = None
    metadata: dict[str, Any] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind != "base" and self.fingerprint is None:
            raise IdentityError(f"adaptation {self.kind!r} needs a fingerprint")


class ProducerIdentity(_Part, frozen=True):
    """Who makes the layout; `implementation_fingerprint` is a constant of the algorithm."""

    producer_id: str
    version: str
    implementation_fingerprint: str
    manifest_schema: str
    restorer_schema: str


class WeightArtifactIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that tells one artifact from another."""

    schema_version: int
    source: SourceIdentity
    component: ComponentIdentity
    representation: Representation
    layout: Layout
    adaptation: Adaptation
    producer: ProducerIdentity

    def __post_init__(self) -> None:
        if self.schema_version < 1:
            raise IdentityError(f"identity schema_version {self.schema_version} must be at least 1")

    def to_dict(self) -> dict[str, Any]:
        """The identity as plain JSON values."""
        value: dict[str, Any] = msgspec.to_builtins(self)
        return value

    @property
    def canonical_bytes(self) -> bytes:
        """The bytes whose sha256 is the key."""
        return canonical_json(self.to_dict())

    @property
    def key(self) -> str:
        """The artifact's name: 64 lowercase hex digits."""
        return sha256_hex(self.canonical_bytes)

    @classmethod
    def from_dict(cls, value: Any) -> WeightArtifactIdentity:
        """Read an identity strictly: every field present, none unknown, nothing coerced.

        Raises:
            IdentityError: what is wrong and where.

        """
        if isinstance(value, dict):
            _require_every_field(value)
        try:
            return msgspec.convert(value, cls, strict=True)
        except msgspec.ValidationError as error:
            raise IdentityError(f"identity is malformed: {error}") from error


def is_key(value: object) -> bool:
    """Whether `value` has the form of an artifact key."""
    return isinstance(value, str) and _KEY.fullmatch(value) is not None


_PARTS: dict[str, type[msgspec.Struct]] = {
    "source": SourceIdentity,
    "component": ComponentIdentity,
    "representation": Representation,
    "layout": Layout,
    "adaptation": Adaptation,
    "producer": ProducerIdentity,
}


def _require_every_field(value: dict[str, Any]) -> None:
    # A default filled in silently would let two spellings of one identity exist on disk.
    for group, part in _PARTS.items():
        fields = value.get(group)
        if isinstance(fields, dict):
            missing = sorted(set(part.__struct_fields__) - fields.keys())
            if missing:
                raise IdentityError(f"identity.{group} lacks {', '.join(missing)}")


def _require_text(name: str, value: str) -> None:
    if not value:
        raise IdentityError(f"{name} must not be empty")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise IdentityError(f"{name} is not valid unicode text") from error


def _frozen_copy(name: str, value: dict[str, Any]) -> dict[str, Any]:
    try:
        copy: dict[str, Any] = json.loads(canonical_json(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise IdentityError(f"{name} is not deterministic JSON: {error}") from error
    return copy
