"""What a model class promises about its final layout, in the model's words and without a dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from weightlease.errors import IdentityError

if TYPE_CHECKING:
    import torch

    from weightlease.restore.ownership import Ownership

CONTRACT_SCHEMA = "weightlease.final-layout-model-v1"


def _derive_nothing(model: torch.nn.Module) -> Mapping[str, torch.Tensor]:  # noqa: ARG001
    return {}


def _any_structure(ownership: Ownership) -> None:
    """Every structure will do."""


def _any_model(model: torch.nn.Module) -> None:
    """Every model will do."""


@dataclass(frozen=True)
class FinalLayoutModelContract:
    """One model implementation; `version` changes with what any of the fields below mean.

    `float32` are shell patterns of tensor names whose float32 values a narrower representation
    keeps. `derive` computes non-persistent buffers of a model that was built on `meta`, without
    changing it. `structure` checks what the model owns, before anything else happens; `validate`
    checks a finished model, after a commit and before a publication. Both raise ValueError.
    """

    implementation_id: str
    version: str
    float32: tuple[str, ...] = ()
    derive: Callable[[torch.nn.Module], Mapping[str, torch.Tensor]] = _derive_nothing
    structure: Callable[[Ownership], None] = _any_structure
    validate: Callable[[torch.nn.Module], None] = _any_model

    def __post_init__(self) -> None:
        if not self.implementation_id or not self.version:
            raise IdentityError("a model contract needs an implementation_id and a version")

    def preserves_float32(self, name: str) -> bool:
        """Whether tensor `name` stays float32."""
        return any(fnmatchcase(name, pattern) for pattern in self.float32)

    def to_dict(self) -> dict[str, object]:
        """What enters an identity."""
        return {
            "schema": CONTRACT_SCHEMA,
            "implementation_id": self.implementation_id,
            "version": self.version,
            "float32": sorted(self.float32),
        }
