"""The identity's bytes are frozen: a changed key orphans every artifact in the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from weightlease.canonical import canonical_json
from weightlease.errors import IdentityError
from weightlease.identity import (
    Adaptation,
    ComponentIdentity,
    Layout,
    ProducerIdentity,
    Representation,
    SourceIdentity,
    WeightArtifactIdentity,
)

VECTORS = json.loads((Path(__file__).parent / "golden" / "identities.json").read_text())


def an_identity(**changes: Any) -> WeightArtifactIdentity:
    fields: dict[str, Any] = {
        "schema_version": 1,
        "source": SourceIdentity("org/model", "a" * 40, "f" * 64),
        "component": ComponentIdentity("model", "full"),
        "representation": Representation("canonical", "source"),
        "layout": Layout("source-files"),
        "adaptation": Adaptation(),
        "producer": ProducerIdentity("p", "1", "p-1", "m-1", "r-1"),
    }
    return WeightArtifactIdentity(**(fields | changes))


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_an_identity_keeps_its_bytes_and_its_key_for_ever(vector: dict[str, Any]) -> None:
    identity = WeightArtifactIdentity.from_dict(vector["identity"])
    assert identity.canonical_bytes.decode() == vector["canonical"]
    assert identity.key == vector["key"]
    assert identity.to_dict() == vector["identity"]


def test_what_must_differ_has_different_keys() -> None:
    identities = [
        an_identity(),
        an_identity(source=SourceIdentity("org/model", "b" * 40, "f" * 64)),
        an_identity(source=SourceIdentity("org/model", "a" * 40, "e" * 64)),
        an_identity(component=ComponentIdentity("vae", "full")),
        an_identity(representation=Representation("canonical", "BF16")),
        an_identity(layout=Layout("source-files", tensor_parallel_size=2)),
        an_identity(layout=Layout("source-files", tensor_parallel_size=2, tensor_parallel_rank=1)),
        an_identity(layout=Layout("source-files", sequence_parallel_backend="ulysses")),
        an_identity(adaptation=Adaptation("merged-lora", "c" * 64)),
        an_identity(producer=ProducerIdentity("p", "2", "p-1", "m-1", "r-1")),
    ]
    assert len({identity.key for identity in identities}) == len(identities)


def test_metadata_order_does_not_change_the_key() -> None:
    one = an_identity(layout=Layout("x", metadata={"a": 1, "b": [1, {"d": 0, "c": 0}]}))
    other = an_identity(layout=Layout("x", metadata={"b": [1, {"c": 0, "d": 0}], "a": 1}))
    assert one.key == other.key


def test_a_caller_that_keeps_its_metadata_cannot_change_the_key() -> None:
    metadata = {"a": [1]}
    identity = an_identity(layout=Layout("x", metadata=metadata))
    before = identity.key
    metadata["a"].append(2)
    assert identity.key == before


@pytest.mark.parametrize(
    "breakage",
    [
        {"schema_version": True},
        {"schema_version": 0},
        {"schema_version": "1"},
        {"surprise": 1},
        {"source": {"model_id": "", "revision": "r", "fingerprint": "f", "metadata": {}}},
        {"source": {"model_id": "m", "revision": "r", "fingerprint": "f"}},
        {"source": {"model_id": 1, "revision": "r", "fingerprint": "f", "metadata": {}}},
        {"source": None},
        {"adaptation": {"kind": "lora", "fingerprint": None, "metadata": {}}},
        {"component": {"name": "\ud800", "ownership": "full", "metadata": {}}},
    ],
)
def test_an_inexact_identity_is_refused(breakage: dict[str, Any]) -> None:
    with pytest.raises(IdentityError):
        WeightArtifactIdentity.from_dict(an_identity().to_dict() | breakage)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_its_group_is_refused(rank: int) -> None:
    with pytest.raises(IdentityError, match="tensor_parallel_rank"):
        Layout("x", tensor_parallel_size=2, tensor_parallel_rank=rank)


@pytest.mark.parametrize("value", [{1: 2}, float("nan"), float("inf"), object(), {"a": {True: 1}}])
def test_only_deterministic_json_is_canonical(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        canonical_json(value)


def test_an_identity_survives_a_round_trip_through_json() -> None:
    identity = an_identity()
    assert WeightArtifactIdentity.from_dict(json.loads(identity.canonical_bytes)) == identity
    assert msgspec.to_builtins(identity) == identity.to_dict()
