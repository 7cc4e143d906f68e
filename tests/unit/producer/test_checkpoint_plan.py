"""The checkpoint-plan producer against torch's own slicing, over sources split in any way."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import pytest
import torch
from safetensors.torch import save_file

from weightlease.errors import FailureCode, WeightLeaseError
from weightlease.parallelism import Coordinates, TensorParallel
from weightlease.producer.checkpoint_plan import CheckpointPlanProducer
from weightlease.producer.plan import CheckpointPlan, parse_plan
from weightlease.producer.plan_reader import WINDOW_BYTES
from weightlease.reports import StoreStatus
from weightlease.runtime import HostWeightRuntime, ResolutionOutcome, RuntimeMode, RuntimePolicy
from weightlease.source.errors import SourceError
from weightlease.source.folder import FolderSource
from weightlease.source.prepared import CheckpointAdapter, PreparedWeightSource, prepare
from weightlease.store.local import LocalStore
from weightlease.store.protocol import ArtifactWriter

HEADS, WIDTH, MLP = 2, 8, 12
PLAN = {
    "schema_version": 1,
    "plan_id": "test-attention",
    "version": "1",
    "representation": {"name": "runtime-bf16-preserved-fp32", "dtype": "BF16"},
    "layout": "tp-packed-qkv",
    "restorer_schema": "test-restorer-v1",
    "rules": [
        {"op": "drop", "patterns": ["optimizer.**"]},
        {"op": "rename", "from": "model.**", "to": "**"},
        {
            "op": "concatenate",
            "sources": ["blocks.*.q.weight", "blocks.*.k.weight", "blocks.*.v.weight"],
            "target": "blocks.*.qkv.weight",
        },
        {"op": "packed", "patterns": ["blocks.*.qkv.weight"], "sections": [1, 1, 1]},
        {"op": "column", "patterns": ["blocks.*.up.weight"]},
        {"op": "row", "patterns": ["blocks.*.out.weight"]},
        {"op": "cast", "dtype": "BF16", "preserve_float32": ["**.norm.weight"]},
    ],
}


def checkpoint() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    found: dict[str, torch.Tensor] = {"optimizer.step": torch.zeros(4)}
    for number in range(2):
        block = f"model.blocks.{number}"
        for name in ("q", "k", "v"):
            found[f"{block}.{name}.weight"] = torch.randn(WIDTH, WIDTH)
        found[f"{block}.up.weight"] = torch.randn(MLP, WIDTH)
        found[f"{block}.out.weight"] = torch.randn(WIDTH, MLP)
        found[f"{block}.norm.weight"] = torch.randn(WIDTH)
        found[f"{block}.steps"] = torch.arange(3) + number
    return found


def expected(rank: int, size: int) -> dict[str, torch.Tensor]:
    """What the plan says, by torch's own means."""
    source = checkpoint()
    found: dict[str, torch.Tensor] = {}
    for number in range(2):
        old, new = f"model.blocks.{number}", f"blocks.{number}"
        parts = [source[f"{old}.{name}.weight"].chunk(size)[rank] for name in ("q", "k", "v")]
        found[f"{new}.qkv.weight"] = torch.cat(parts).bfloat16()
        found[f"{new}.up.weight"] = source[f"{old}.up.weight"].chunk(size)[rank].bfloat16()
        found[f"{new}.out.weight"] = source[f"{old}.out.weight"].chunk(size, 1)[rank].bfloat16()
        found[f"{new}.norm.weight"] = source[f"{old}.norm.weight"]
        found[f"{new}.steps"] = source[f"{old}.steps"]
    return found


@dataclass
class Place:
    root: Path

    def source(self, shards: int = 1) -> PreparedWeightSource:
        folder = self.root / f"source-{shards}"
        if not folder.exists():
            folder.mkdir()
            items = list(checkpoint().items())
            for number in range(shards):
                part = dict(items[number::shards])
                save_file(part, folder / f"model-{number + 1:05d}-of-{shards:05d}.safetensors")
        found = FolderSource(str(folder), ".")
        return prepare(
            found, tuple(found.files()), CheckpointAdapter("plan", "1"), model_id="org/attention"
        )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "domain")


def plan(**changes: Any) -> CheckpointPlan:
    return parse_plan(json.dumps(PLAN | changes).encode())


def producer(
    source: PreparedWeightSource, rank: int = 0, size: int = 1, **options: Any
) -> CheckpointPlanProducer:
    return CheckpointPlanProducer(
        source,
        options.pop("plan", plan()),
        component="dit",
        coordinates=Coordinates(tensor=TensorParallel(size=size, rank=rank)),
        **options,
    )


@pytest.mark.parametrize(("rank", "size"), [(0, 1), (0, 2), (1, 2)])
def test_every_bit_is_what_torch_slices_joins_and_casts(
    place: Place, store: LocalStore, rank: int, size: int
) -> None:
    built = store.get_or_build(producer(place.source(), rank, size))
    assert built.lease is not None, built.failure
    with built.lease as lease:
        wanted = expected(rank, size)
        assert set(lease.names()) == set(wanted)
        for name, tensor in wanted.items():
            found = lease.tensor(name)
            assert found.dtype == tensor.dtype
            assert torch.equal(found, tensor), name


def test_tensor_parallel_ranks_are_artifacts_of_their_own(place: Place) -> None:
    source = place.source()
    keys = {
        producer(source).identity.key,
        producer(source, 0, 2).identity.key,
        producer(source, 1, 2).identity.key,
        producer(source, plan=plan(version="2")).identity.key,
    }
    assert len(keys) == 4


@pytest.mark.parametrize("shards", [2, 5])
def test_content_and_files_do_not_depend_on_how_the_source_is_split(
    place: Place, store: LocalStore, shards: int
) -> None:
    manifests = []
    for count in (1, shards):
        built = store.get_or_build(producer(place.source(count)))
        assert built.lease is not None, built.failure
        with built.lease as lease:
            manifests.append(lease.manifest)
    one, other = manifests
    assert one.artifact_content_sha256 == other.artifact_content_sha256
    assert one.files == other.files
    assert one.artifact_key != other.artifact_key, "they are different sources"


def test_the_same_plan_over_the_same_bytes_gives_the_same_manifest(
    place: Place, tmp_path: Path
) -> None:
    manifests = set()
    for number in range(2):
        built = LocalStore(tmp_path / f"domain-{number}").get_or_build(producer(place.source()))
        assert built.lease is not None
        with built.lease as lease:
            manifests.add(lease.manifest.canonical_bytes)
    assert len(manifests) == 1


def test_small_files_hold_the_same_content(place: Place, tmp_path: Path) -> None:
    digests, counts = set(), set()
    for limit in (1, 1 << 30):
        store = LocalStore(tmp_path / f"domain-{limit}")
        built = store.get_or_build(producer(place.source(), shard_bytes=limit))
        assert built.lease is not None
        with built.lease as lease:
            digests.add(lease.manifest.artifact_content_sha256)
            counts.add(len(lease.manifest.files))
    assert len(digests) == 1
    assert len(counts) == 2


def test_memory_stays_bounded_by_windows_and_not_by_tensors(
    tmp_path: Path, store: LocalStore
) -> None:
    folder = tmp_path / "large"
    folder.mkdir()
    rows, columns = 10 * WINDOW_BYTES // 65536, 16384
    save_file({"model.w": torch.zeros(rows, columns)}, folder / "model.safetensors")
    found = FolderSource(str(folder), ".")
    source = prepare(found, tuple(found.files()), CheckpointAdapter("p", "1"), model_id="m")
    split = plan(rules=[{"op": "row", "patterns": ["model.w"]}])
    made = producer(source, 1, 2, plan=split)

    class Swallowing:
        def write(self, name: str, data: object) -> None:
            pass

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *raised: object) -> None:
            pass

    class Writer:
        def tensors(self, name: str, specs: object) -> Swallowing:
            return Swallowing()

    tracemalloc.start()
    try:
        made.produce(cast("ArtifactWriter", Writer()))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 * WINDOW_BYTES


def test_a_source_that_changes_publishes_nothing(place: Place, store: LocalStore) -> None:
    source = place.source()
    made = producer(source)
    path = place.root / "source-1" / "model-00001-of-00001.safetensors"
    path.write_bytes(path.read_bytes())
    failed = store.get_or_build(made)
    assert failed.status is StoreStatus.FAILED
    assert failed.failure is not None
    assert failed.failure.details["reason"] == "SourceChanged"
    assert store.lookup(made.identity).status is StoreStatus.MISS


def test_a_source_cut_short_is_refused_before_anything_is_built(place: Place) -> None:
    path = place.root / "source-1" / "model-00001-of-00001.safetensors"
    place.source()
    path.write_bytes(path.read_bytes()[:-1])
    found = FolderSource(str(path.parent), ".")
    source = prepare(found, tuple(found.files()), CheckpointAdapter("p", "1"), model_id="m")
    with pytest.raises(WeightLeaseError) as caught:
        producer(source)
    assert caught.value.failure.code is FailureCode.MANIFEST_CORRUPT


def test_one_tensor_in_two_shards_is_refused(place: Place) -> None:
    folder = place.root / "source-1"
    place.source()
    (folder / "copy.safetensors").write_bytes(
        (folder / "model-00001-of-00001.safetensors").read_bytes()
    )
    with pytest.raises(SourceError, match="is in both"):
        producer(place.source())


def test_a_runtime_builds_by_plan_before_the_load(place: Place, store: LocalStore) -> None:
    policy = RuntimePolicy(RuntimeMode.REQUIRED)
    made = producer(place.source())
    runtime = HostWeightRuntime(lambda: store, policy)
    with runtime.resolve(lambda: made.identity, lambda: made) as cold:
        assert cold.report.outcome is ResolutionOutcome.LOCAL_PRODUCTION
    with runtime.resolve(lambda: made.identity) as warm:
        assert warm.report.outcome is ResolutionOutcome.LOCAL_HIT
