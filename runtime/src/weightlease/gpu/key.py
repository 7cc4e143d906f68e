"""Which weights: five identities that the caller vouches for; nothing is hashed while attaching."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from weightlease.canonical import canonical_json, sha256_hex

MAX_FIELD = 4096


class WeightCacheKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Weights of one component, exactly.

    `checkpoint` is an immutable revision or a digest of the content, never a name that can move.
    `configuration` names architecture, constants and attention backend: see `configuration_id`.
    `weight_processing` changes whenever weights are prepared another way; a method's body may
    change without it.

    Raises:
        ValueError: an empty or oversized field.

    """

    checkpoint: str
    component: str
    configuration: str
    dtype: str
    weight_processing: str

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            if not 0 < len(getattr(self, field)) <= MAX_FIELD:
                raise ValueError(f"{field} must have 1 to {MAX_FIELD} characters")

    def differing(self, other: WeightCacheKey) -> tuple[str, ...]:
        """Names of the fields in which two keys differ."""
        fields = self.__struct_fields__
        return tuple(name for name in fields if getattr(self, name) != getattr(other, name))


def configuration_id(
    architecture: str, constants: Mapping[str, Any], attention_backend: str = "default"
) -> str:
    """A `WeightCacheKey.configuration` from a resolved configuration.

    Raises:
        TypeError: a constant that JSON has no exact form for.
        ValueError: a constant that is not finite.

    """
    given = {
        "architecture": architecture,
        "attention_backend": attention_backend,
        "constants": dict(constants),
    }
    return sha256_hex(canonical_json(given))
