"""Which content a spec asks for.

    content = "<16 hex: digest of source, components, storage class and producer ABI>-<generation>"

The generation is that of the edit which brought the content, so an edit that only changes the
rollout or the placement keeps keys, entries and Jobs as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from weightlease.api.weight_artifact import WeightArtifactSpec
from weightlease.api.weight_producer import ProducerAbi
from weightlease.canonical import canonical_json, sha256_hex


@dataclass(frozen=True, slots=True)
class Content:
    """One content of a WeightArtifact, in the form that its status and Jobs carry."""

    digest: str
    generation: int

    def __str__(self) -> str:
        return f"{self.digest}-{self.generation}"

    @classmethod
    def parse(cls, text: str) -> Content | None:
        digest, _, generation = text.partition("-")
        return cls(digest, int(generation)) if digest and generation.isdecimal() else None


def content_of(
    spec: WeightArtifactSpec, abi: ProducerAbi, *, generation: int, recorded: str
) -> Content:
    """The content asked for; the recorded one while nothing about the bytes has changed."""
    digest = sha256_hex(
        canonical_json(
            {
                "source": spec.source.to_json(),
                "components": [component.to_json() for component in spec.components],
                "storageClass": spec.storage_class.value,
                "producer": abi.to_json(),
            }
        )
    )[:16]
    known = Content.parse(recorded)
    return known if known is not None and known.digest == digest else Content(digest, generation)
