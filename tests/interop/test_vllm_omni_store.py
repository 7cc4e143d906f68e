"""One domain, two implementations: vllm-omni 0.30's store and ours read what the other wrote."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from sample_producer import PAYLOADS, SampleProducer, fine_tune
from small_artifact import safetensors_bytes
from store_conformance import flip_last_byte
from vllm_omni_peer import hwr, open_store, their_identity
from weightlease.errors import FailureCode
from weightlease.identity import WeightArtifactIdentity
from weightlease.manifest import TensorKind, content_sha256
from weightlease.policy import Validation
from weightlease.reports import CleanupStatus, StoreStatus
from weightlease.store.local import LocalStore
from weightlease.store.protocol import ArtifactWriter, ProductionMetadata, TensorSpec
from weightlease.store.publication import Publication

KEY = fine_tune(0).key
METADATA_ONLY = hwr.ValidationLevel.MANIFEST_AND_METADATA
FULL = hwr.ValidationLevel.FULL_CHECKSUM

TENSORS = {
    "byte": ("U8", (1,), b"\x07"),
    "weight": ("F32", (2, 3), bytes(range(24))),
    "scale": ("BF16", (), b"\x80\x3f"),
    "empty": ("F32", (0, 7), b""),
    "eight": ("F8_E4M3", (3,), b"\x01\x02\x03"),
    "exponents": ("F8_E8M0", (3,), b"\x7f\x80\x81"),
}


@dataclass(frozen=True)
class LaidOut:
    """A `WeightProducer` that lets the store lay its tensors out."""

    identity: WeightArtifactIdentity
    total_bytes: int = 10**6

    def produce(self, writer: ArtifactWriter) -> ProductionMetadata:
        tensors = {**TENSORS, "packed": ("F4", (2, 8), b"12345678")}
        specs = tuple(TensorSpec(name, dtype, shape) for name, (dtype, shape, _) in tensors.items())
        with writer.tensors("model.safetensors", specs) as file:
            for name, (_, _, body) in tensors.items():
                file.write(name, body)
        return ProductionMetadata("manifest-v1", "restorer-v1", {"format": "laid-out"})


class TheirProducer:
    """One of their producers: two files, one tensor a buffer."""

    def __init__(self, identity: WeightArtifactIdentity, fill: float = 1.0) -> None:
        self.spec = hwr.WeightProductionSpec(
            identity.producer.producer_id,
            (their_identity(identity),),
            hwr.ProductionSourceMode.CHECKPOINT_STREAM,
        )
        self.tensors = {
            "a.safetensors": {"a": torch.full((3, 2), fill), "count": torch.tensor([7])},
            "b.safetensors": {"b": torch.full((4,), fill, dtype=torch.bfloat16)},
        }

    def produce(self, writer: Any) -> Any:
        for file_name, tensors in self.tensors.items():
            specs = tuple(
                hwr.TensorWriteSpec(name, tuple(each.shape), each.dtype, self._kind(name))
                for name, each in tensors.items()
            )
            with writer.open_tensor_file(file_name, specs) as file:
                for name, each in tensors.items():
                    file.write_tensor(name, each)
        return hwr.ProductionMetadata("manifest-v1", "restorer-v1")

    @staticmethod
    def _kind(name: str) -> Any:
        return hwr.TensorKind.BUFFER if name == "count" else hwr.TensorKind.PARAMETER


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "domain"


def they_build(root: Path, producer: TheirProducer, seconds: float = 60) -> Any:
    request = hwr.BuildRequest(producer.spec.outputs[0])
    deadline = time.monotonic() + seconds
    store = open_store(root)
    return store.get_or_build(request, producer, validation=METADATA_ONLY, deadline=deadline)


def they_publish(root: Path, producer: TheirProducer) -> None:
    result = they_build(root, producer)
    assert result.lease is not None, result
    result.lease.close()


def they_look_up(root: Path, validation: Any = FULL) -> Any:
    return open_store(root).lookup(their_identity(fine_tune(0)), validation=validation)


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.reshape(-1).view(torch.uint8).numpy()) if tensor.numel() else b""


def we_publish(root: Path, producer: Any) -> None:
    result = LocalStore(root).get_or_build(producer)
    assert result.lease is not None, result
    result.lease.close()


# ---- reading each other ----


@pytest.mark.parametrize("odd", [False, True], ids=["aligned", "odd"])
def test_they_lease_a_file_that_we_published_verbatim(root: Path, odd: bool) -> None:
    files = {"model.safetensors": safetensors_bytes(TENSORS, odd=odd)}
    we_publish(root, SampleProducer(payloads=files))
    result = they_look_up(root)
    assert result.lease is not None, result
    for name, (_, shape, body) in TENSORS.items():
        tensor = result.lease.tensors[name]
        assert (tuple(tensor.shape), raw(tensor)) == (shape, body), name
    result.lease.close()


def test_they_lease_a_file_that_we_laid_out(root: Path) -> None:
    we_publish(root, LaidOut(fine_tune(0)))
    result = they_look_up(root)
    assert result.lease is not None, result
    packed = result.lease.tensors["packed"]
    assert (packed.dtype, tuple(packed.shape)) == (torch.float4_e2m1fn_x2, (2, 4))
    assert raw(result.lease.tensors["weight"]) == bytes(range(24))
    result.lease.close()


def test_we_lease_what_they_published(root: Path) -> None:
    they_publish(root, TheirProducer(fine_tune(0)))
    result = LocalStore(root).lookup(fine_tune(0), validation=Validation.FULL_CHECKSUM)
    assert result.lease is not None, result
    with result.lease as lease:
        kinds = {entry.name: entry.kind for entry in lease.manifest.tensors}
        assert kinds["count"] is TensorKind.BUFFER
        assert torch.equal(lease.tensor("a"), torch.ones(3, 2))
        assert torch.equal(lease.tensor("b"), torch.ones(4, dtype=torch.bfloat16))
        assert lease.tensor("count").item() == 7


def test_both_give_one_content_the_same_digest(root: Path, tmp_path: Path) -> None:
    they_publish(root, TheirProducer(fine_tune(0)))
    with LocalStore(root).open_artifact(KEY) as theirs:
        files = {
            entry.file_name: Path(theirs.payload_path(entry.file_name)).read_bytes()
            for entry in theirs.manifest.files
        }
        digest = theirs.manifest.artifact_content_sha256
        kinds = {entry.kind for entry in theirs.manifest.tensors}
    assert TensorKind.BUFFER in kinds
    we_publish(tmp_path / "ours", SampleProducer(payloads=files, assets={}))
    with LocalStore(tmp_path / "ours").open_artifact(KEY) as ours:
        parameters = tuple(
            # what a file cannot tell: that one of the tensors is a buffer
            entry if entry.name != "count" else structs.replace(entry, kind=TensorKind.BUFFER)
            for entry in ours.manifest.tensors
        )
    assert content_sha256(parameters) == digest


# ---- coordinating with each other ----


def test_they_join_our_artifact_and_we_theirs(root: Path) -> None:
    we_publish(root, SampleProducer())
    joined = they_build(root, TheirProducer(fine_tune(0)))
    assert joined.status is hwr.StoreStatus.HIT
    joined.lease.close()
    they_publish(root, TheirProducer(fine_tune(1)))
    ours = LocalStore(root).get_or_build(SampleProducer(fine_tune(1)))
    assert ours.status is StoreStatus.HIT
    assert ours.lease is not None
    ours.lease.close()


def test_they_wait_for_our_build(root: Path) -> None:
    publication = LocalStore(root).begin(fine_tune(0), 100, timeout=0)
    assert isinstance(publication, Publication)
    late = they_build(root, TheirProducer(fine_tune(0)), seconds=0.1)
    assert late.status is hwr.StoreStatus.TIMEOUT
    publication.abort()
    they_publish(root, TheirProducer(fine_tune(0)))


def test_our_lease_blocks_their_cleanup_and_theirs_ours(root: Path) -> None:
    we_publish(root, SampleProducer())
    store, theirs = LocalStore(root), open_store(root)
    lease = store.lookup(fine_tune(0)).lease
    assert lease is not None
    assert theirs.cleanup(their_identity(fine_tune(0))).code is hwr.FailureCode.ACTIVE_LEASE
    lease.close()
    their_lease = they_look_up(root, METADATA_ONLY).lease
    assert store.cleanup(KEY).status is CleanupStatus.ACTIVE_LEASE
    their_lease.close()
    assert theirs.cleanup(their_identity(fine_tune(0))) is None
    assert store.lookup(fine_tune(0)).status is StoreStatus.MISS
    assert store.leftovers() == (KEY,), "they do not know our assets"
    assert store.cleanup(KEY).status is CleanupStatus.REMOVED


def test_a_denial_of_one_is_a_denial_for_both(root: Path) -> None:
    we_publish(root, SampleProducer())
    flip_last_byte(root / "artifacts" / KEY / "model.safetensors")
    found = they_look_up(root)
    assert found.failure.code is hwr.FailureCode.CHECKSUM_MISMATCH
    ours = LocalStore(root).lookup(fine_tune(0)).failure
    assert ours is not None
    assert ours.code is FailureCode.ARTIFACT_DENIED
    (entry,) = [each for each in LocalStore(root).inspect().inventory if each.reason]
    assert entry.reason == "checksum_mismatch"
    we_publish(root, SampleProducer())
    assert they_look_up(root).lease.close() is None


def test_they_open_a_domain_that_we_made_and_we_one_of_theirs(root: Path, tmp_path: Path) -> None:
    ours = LocalStore(root)
    assert open_store(root).inspect_domain().domain_uuid == ours.domain.uuid
    theirs = open_store(tmp_path / "theirs")
    assert LocalStore(tmp_path / "theirs").domain.uuid == theirs.inspect_domain().domain_uuid


def test_their_inventory_lists_our_artifact(root: Path) -> None:
    we_publish(root, replace(SampleProducer(), assets={}))
    (entry,) = open_store(root).inspect_domain().inventory
    assert (entry.artifact_key, entry.state.value) == (KEY, "ready")
    assert entry.size_bytes > len(PAYLOADS["model.safetensors"])
