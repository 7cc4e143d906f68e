"""A producer that knows what its tensors are to their modules says so, and is held to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from sample_producer import SampleProducer
from weightlease.errors import FailureCode
from weightlease.manifest import TensorKind
from weightlease.store.local import LocalStore
from weightlease.store.protocol import ArtifactWriter, ProductionMetadata


@dataclass(frozen=True)
class Knowing(SampleProducer):
    """The sample, with something to say of its tensors."""

    said: Any = None

    def produce(self, writer: ArtifactWriter) -> ProductionMetadata:
        metadata = super().produce(writer)
        return msgspec.structs.replace(metadata, format_metadata={"tensor_semantics": self.said})


def test_kinds_and_roles_move_into_the_tensors_entries(store: LocalStore) -> None:
    producer = Knowing(said={"scale": ["buffer", "persistent_buffer"]})
    lease = store.get_or_build(producer).lease
    assert lease is not None
    with lease:
        entries = {entry.name: (entry.kind, entry.role) for entry in lease.manifest.tensors}
        assert "tensor_semantics" not in lease.manifest.format_metadata
    assert entries["scale"] == (TensorKind.BUFFER, "persistent_buffer")
    assert entries["encoder.weight"] == (TensorKind.PARAMETER, "weight")


@pytest.mark.parametrize(
    "said",
    [
        [],
        {"scale": "buffer"},
        {"scale": ["gradient", "weight"]},
        {"scale": ["buffer"]},
        {"scale": ["buffer", ""]},
        {"unwritten": ["buffer", "x"]},
    ],
)
def test_what_makes_no_sense_is_never_published(store: LocalStore, said: object) -> None:
    failed = store.get_or_build(Knowing(said=said))
    assert failed.failure is not None
    assert failed.failure.code in {FailureCode.PRODUCER_FAILED, FailureCode.MANIFEST_CORRUPT}
    assert store.inspect().inventory == ()
