"""What a publication takes, what it refuses, and that it appears whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sample_producer import ASSETS, PAYLOADS, SampleProducer, fine_tune, sha256
from small_artifact import safetensors_bytes
from weightlease.errors import FailureCode, WeightLeaseError
from weightlease.locks import is_locked
from weightlease.policy import CapacityPolicy, DomainPolicy, WaitPolicy
from weightlease.reports import CleanupStatus, StoreStatus
from weightlease.store import staged_file
from weightlease.store.artifact import OpenArtifact
from weightlease.store.failpoints import Point
from weightlease.store.local import LocalStore
from weightlease.store.protocol import ProductionMetadata, TensorSpec
from weightlease.store.publication import Publication

PAYLOAD = "model.safetensors"
METADATA = ProductionMetadata("manifest-v1", "restorer-v1", {"format": "canonical"})
KEY = fine_tune(0).key
Arm = Callable[..., None]


def begin(store: LocalStore, total: int = 10**8) -> Publication:
    begun = store.begin(fine_tune(0), total, timeout=1)
    assert isinstance(begun, Publication)
    return begun


def fill(publication: Publication) -> None:
    SampleProducer().produce(publication)


def refusal(act: Callable[[], object]) -> FailureCode:
    with pytest.raises(WeightLeaseError) as caught:
        act()
    return caught.value.failure.code


def staged(root: Path) -> list[str]:
    return os.listdir(root / "tmp")


# ---- what it takes ----


def test_a_publication_ends_as_an_open_artifact(store: LocalStore, root: Path) -> None:
    publication = begin(store)
    fill(publication)
    written = sum(map(len, [*PAYLOADS.values(), *ASSETS.values()]))
    assert publication.bytes_written == written
    with publication.finalize(METADATA) as artifact:
        assert artifact.key == KEY
        assert Path(artifact.payload_path(PAYLOAD)).read_bytes() == PAYLOADS[PAYLOAD]
    assert staged(root) == []
    assert not is_locked(store.domain.paths.build_lock(KEY))


def test_begin_gives_the_artifact_when_it_is_there(store: LocalStore, key: str) -> None:
    begun = store.begin(fine_tune(0), 1, timeout=0)
    assert isinstance(begun, OpenArtifact)
    begun.close()
    assert store.cleanup(key).status is CleanupStatus.REMOVED


def test_modes_are_those_of_a_v1_domain(root: Path, key: str) -> None:
    def mode(path: Path) -> int:
        return path.lstat().st_mode & 0o7777

    artifact, assets = root / "artifacts" / key, root / "assets" / key
    assert (mode(artifact), mode(assets)) == (0o555, 0o555)
    files = [*artifact.iterdir(), *assets.iterdir()]
    assert {mode(path) for path in files} == {0o444}
    assert {path.stat().st_nlink for path in files} == {1}
    assert {mode(path) for path in (root / "locks").iterdir()} == {0o600}


def test_assets_of_equal_content_are_stored_once(root: Path, key: str) -> None:
    names = {path.name for path in (root / "assets" / key).iterdir()}
    assert names == {sha256(data) for data in ASSETS.values()}
    assert len(names) == len(ASSETS) - 1


def test_an_artifact_may_have_no_assets(store: LocalStore, root: Path) -> None:
    lease = store.get_or_build(SampleProducer(assets={})).lease
    assert lease is not None
    assert "assets" not in lease.manifest.format_metadata
    lease.close()
    assert os.listdir(root / "assets") == []


def test_another_thread_may_drive_a_publication(store: LocalStore) -> None:
    publication = begin(store)
    worker = threading.Thread(target=fill, args=(publication,))
    worker.start()
    worker.join()
    publication.finalize(METADATA).close()


def test_tensors_are_laid_out_in_declared_order(store: LocalStore) -> None:
    publication = begin(store)
    specs = (TensorSpec("z", "F32", (2,)), TensorSpec("e", "U8", (0,)), TensorSpec("a", "F4", (4,)))
    with publication.tensors(PAYLOAD, specs) as file:
        file.write("z", b"1234")
        file.write("z", b"5678")
        file.write("a", b"ab")
    with publication.finalize(METADATA).to_lease() as lease:
        assert bytes(lease.buffer("z")) == b"12345678"
        assert bytes(lease.buffer("a")) == b"ab"
        entries = {entry.name: entry for entry in lease.manifest.tensors}
    assert entries["a"].shape == (2,)
    assert entries["z"].sha256 == sha256(b"12345678")
    assert entries["e"].sha256 == sha256(b"")


def big_payload(count: int = 3) -> bytes:
    block = bytes(range(256)) * 4096
    tensors = {
        f"t{index}": ("U8", (len(block) * 3 + index,), block * 3 + bytes(index))
        for index in range(count)
    }
    return safetensors_bytes(tensors)


def as_bytes(file: staged_file.StagedFile, data: bytes) -> None:
    file.write(data)


def as_small_views(file: staged_file.StagedFile, data: bytes) -> None:
    for start in range(0, len(data), 700_001):
        file.write(memoryview(data)[start : start + 700_001])


def as_one_reused_buffer(file: staged_file.StagedFile, data: bytes) -> None:
    buffer = bytearray(1_000_003)
    for start in range(0, len(data), len(buffer)):
        count = min(len(buffer), len(data) - start)
        buffer[:count] = data[start : start + count]
        file.write(memoryview(buffer)[:count])


def in_place(file: staged_file.StagedFile, data: bytes) -> None:
    position = 0
    while position < len(data):
        room = file.reserve()
        count = min(len(room), 900_001, len(data) - position)
        room[:count] = data[position : position + count]
        file.commit(count)
        position += count


@pytest.mark.parametrize("write", [as_bytes, as_small_views, as_one_reused_buffer, in_place])
def test_a_large_file_is_written_and_hashed_exactly_however_it_arrives(
    store: LocalStore, write: Callable[[staged_file.StagedFile, bytes], None]
) -> None:
    data = big_payload()
    publication = begin(store)
    with publication.payload(PAYLOAD, len(data), sha256(data)) as file:
        write(file, data)
    with publication.finalize(METADATA) as artifact:
        assert Path(artifact.payload_path(PAYLOAD)).read_bytes() == data
    store.verify(KEY)
    tensors = store.verify(KEY).tensors
    block = bytes(range(256)) * 4096 * 3
    assert [entry.sha256 for entry in tensors] == [sha256(block + bytes(i)) for i in range(3)]


def test_small_files_can_be_filled_in_place_too(store: LocalStore) -> None:
    publication = begin(store)
    with publication.payload(PAYLOAD, len(PAYLOADS[PAYLOAD])) as file:
        in_place(file, PAYLOADS[PAYLOAD])
        assert refusal(file.reserve) is FailureCode.PRODUCER_FAILED
    publication.finalize(METADATA).close()
    store.verify(KEY)


def test_a_large_file_whose_header_lies_stops_the_producer(store: LocalStore, root: Path) -> None:
    data = b"<html>" + bytes(200 * 1024 * 1024)

    def write() -> None:
        with publication.payload(PAYLOAD, len(data)) as file:
            as_small_views(file, data)

    publication = begin(store, 10**9)
    with pytest.raises(WeightLeaseError) as caught:
        write()
    assert caught.value.failure.details["reason"] == "html"
    publication.abort()
    assert staged(root) == []


# ---- what it refuses ----


def test_declarations_that_make_no_sense_are_refused(store: LocalStore) -> None:
    publication = begin(store, 1000)
    fill_one = PAYLOADS[PAYLOAD]
    with publication.payload(PAYLOAD, len(fill_one)) as file:
        file.write(fill_one)
    refused: list[Callable[[], object]] = [
        lambda: publication.payload(PAYLOAD, 8).__enter__(),
        lambda: publication.payload("weights.bin", 8).__enter__(),
        lambda: publication.payload("a.safetensors", -1).__enter__(),
        lambda: publication.payload("a.safetensors", 1001).__enter__(),
        lambda: publication.payload("a.safetensors", 8, "ABC").__enter__(),
        lambda: publication.finalize(ProductionMetadata("other", "restorer-v1")),
    ]
    assert {refusal(act) for act in refused} == {FailureCode.PRODUCER_FAILED}
    assert refusal(lambda: fill(publication)) is FailureCode.PRODUCER_FAILED


@pytest.mark.parametrize("name", ["../x.safetensors", "a/b.safetensors", "", "/x.safetensors"])
def test_a_payload_name_that_is_no_basename_is_refused(store: LocalStore, name: str) -> None:
    publication = begin(store)
    assert refusal(lambda: publication.payload(name, 8).__enter__()) is FailureCode.MANIFEST_CORRUPT
    publication.abort()


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a//b", "a/./b", "a\\b", "", "x" * 256])
def test_an_asset_path_that_is_not_plain_is_refused(store: LocalStore, path: str) -> None:
    publication = begin(store)
    assert refusal(lambda: publication.asset(path, 8).__enter__()) is FailureCode.MANIFEST_CORRUPT
    publication.abort()


def test_files_come_one_at_a_time(store: LocalStore) -> None:
    publication = begin(store)
    with publication.payload(PAYLOAD, len(PAYLOADS[PAYLOAD])) as file:
        assert refusal(lambda: publication.asset("x", 1).__enter__()) is FailureCode.PRODUCER_FAILED
        file.write(PAYLOADS[PAYLOAD])
    publication.abort()


def test_tensors_out_of_order_too_long_or_missing_are_refused(store: LocalStore) -> None:
    specs = (TensorSpec("a", "U8", (2,)), TensorSpec("b", "U8", (2,)))

    def write(*steps: tuple[str, bytes]) -> None:
        with publication.tensors(PAYLOAD, specs) as file:
            for name, data in steps:
                file.write(name, data)

    publication = begin(store)
    for steps in (
        [("b", b"12")],
        [("a", b"123")],
        [("a", b"1"), ("b", b"12")],
        [("a", b"12")],
        [("a", b"12"), ("b", b"1")],
        [("a", b"12"), ("b", b"12"), ("c", b"")],
    ):
        assert refusal(lambda steps=steps: write(*steps)) is FailureCode.PRODUCER_FAILED  # type: ignore[misc]
    write(("a", b"12"), ("b", b"12"))
    publication.finalize(METADATA).close()


def test_a_file_that_failed_may_be_written_again(store: LocalStore) -> None:
    publication = begin(store)
    whole = PAYLOADS[PAYLOAD]

    def lose_connection() -> None:
        with publication.payload(PAYLOAD, len(whole)) as file:
            file.write(whole[:10])
            raise ConnectionError

    with pytest.raises(ConnectionError):
        lose_connection()
    with publication.payload(PAYLOAD, len(whole)) as file:
        file.write(whole)
    publication.finalize(METADATA).close()
    store.verify(KEY)


def test_one_tensor_in_two_files_is_refused(store: LocalStore) -> None:
    whole = PAYLOADS[PAYLOAD]
    result = store.get_or_build(SampleProducer(payloads={"a.safetensors": whole, PAYLOAD: whole}))
    assert result.failure is not None
    assert result.failure.code is FailureCode.PRODUCER_FAILED
    assert "in both" in result.failure.message


def test_an_artifact_without_a_tensor_is_refused(store: LocalStore) -> None:
    assert refusal(lambda: begin(store).finalize(METADATA)) is FailureCode.PRODUCER_FAILED


def test_a_manifest_that_others_did_not_publish_is_refused(store: LocalStore, root: Path) -> None:
    publication = begin(store)
    fill(publication)
    code = refusal(lambda: publication.finalize(METADATA, expected_manifest_sha256="0" * 64))
    assert code is FailureCode.CONTENT_MISMATCH
    assert store.lookup(fine_tune(0)).status is StoreStatus.MISS
    assert staged(root) == []
    again = begin(store)
    fill(again)
    with again.finalize(METADATA) as artifact:
        expected = artifact.manifest_sha256
    store.cleanup(KEY)
    third = begin(store)
    fill(third)
    third.finalize(METADATA, expected_manifest_sha256=expected).close()


def test_aborting_frees_staging_and_lock_and_can_be_repeated(store: LocalStore, root: Path) -> None:
    publication = begin(store)
    writer = publication.payload(PAYLOAD, 10**7)
    writer.__enter__().write(bytes(2 * 10**6))
    before = threading.active_count()
    publication.abort()
    publication.abort()
    assert threading.active_count() == before - 3
    assert staged(root) == []
    assert refusal(lambda: publication.finalize(METADATA)) is FailureCode.PRODUCER_FAILED
    begin(store).abort()


# ---- capacity ----


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (CapacityPolicy(max_artifact_bytes=1000), FailureCode.ARTIFACT_TOO_LARGE),
        (CapacityPolicy(max_store_bytes=1000), FailureCode.STORE_LIMIT_EXCEEDED),
        (CapacityPolicy(min_free_bytes=2**60), FailureCode.INSUFFICIENT_CAPACITY),
    ],
)
def test_a_limit_is_named_with_what_is_needed_and_available(
    tmp_path: Path, limits: CapacityPolicy, code: FailureCode
) -> None:
    store = LocalStore(tmp_path / "limited", DomainPolicy(capacity=limits))
    failed = store.get_or_build(SampleProducer(total_bytes=2000)).failure
    assert failed is not None
    assert (failed.code, failed.retryable) == (code, True)
    assert failed.details["needed_bytes"] == 2000
    assert failed.details["available_bytes"] <= 1000
    assert staged(tmp_path / "limited") == []


def test_metadata_counts_towards_an_artifacts_limit(tmp_path: Path) -> None:
    limits = CapacityPolicy(max_artifact_bytes=700)
    store = LocalStore(tmp_path / "limited", DomainPolicy(capacity=limits))
    failed = store.get_or_build(SampleProducer(total_bytes=600)).failure
    assert failed is not None
    assert failed.code is FailureCode.ARTIFACT_TOO_LARGE


# ---- failures around the rename ----


@pytest.mark.parametrize(
    "point",
    [
        Point.BEFORE_MANIFEST,
        Point.BEFORE_READY,
        Point.BEFORE_SEAL,
        Point.BEFORE_ASSETS_RENAME,
        Point.BEFORE_RENAME,
    ],
)
def test_storage_that_fails_before_the_rename_publishes_nothing(
    store: LocalStore, root: Path, fail_at: Arm, point: Point
) -> None:
    fail_at(point)
    failed = store.get_or_build(SampleProducer()).failure
    assert failed is not None
    assert (failed.code, failed.retryable) == (FailureCode.DOMAIN_UNAVAILABLE, True)
    assert store.lookup(fine_tune(0)).status is StoreStatus.MISS
    assert staged(root) == []
    fail_at()
    assert build(store) is StoreStatus.BUILT


@pytest.mark.parametrize("point", [Point.AFTER_RENAME, Point.BEFORE_COMMIT])
def test_storage_that_fails_after_the_rename_is_taken_back(
    store: LocalStore, root: Path, fail_at: Arm, point: Point
) -> None:
    fail_at(point)
    failed = store.get_or_build(SampleProducer()).failure
    assert failed is not None
    assert failed.code is FailureCode.PUBLICATION_FAILED
    assert failed.details["containment"]["quarantine"] == "completed"
    assert store.lookup(fine_tune(0)).status is StoreStatus.MISS
    names = os.listdir(root / "quarantine")
    assert [name.split(".")[1] for name in names] == ["publication_failure"]
    fail_at()
    assert build(store) is StoreStatus.BUILT


def test_an_outcome_that_nobody_knows_is_reported_as_such(store: LocalStore, fail_at: Arm) -> None:
    fail_at(Point.BEFORE_COMMIT, Point.BEFORE_CONTAINMENT)
    failed = store.get_or_build(SampleProducer()).failure
    assert failed is not None
    assert failed.details["outcome_uncertain"] is True
    assert {"publication_error", "containment_error"} <= failed.details.keys()


def test_nothing_after_the_commit_fails_the_caller(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock

    def cannot_unlock(fd: int, operation: int) -> None:
        if operation == fcntl.LOCK_UN:
            raise OSError(errno.EIO, "injected")
        real(fd, operation)

    publication = begin(store)
    fill(publication)
    monkeypatch.setattr(fcntl, "flock", cannot_unlock)
    publication.finalize(METADATA).to_lease().close()
    assert build(store) is StoreStatus.HIT


# ---- competitors that ignore the build lock ----


def published_elsewhere(tmp_path: Path, producer: SampleProducer) -> Path:
    other = LocalStore(tmp_path / "other")
    lease = other.get_or_build(producer).lease
    assert lease is not None
    lease.close()
    return Path(other.root)


def test_equal_content_published_meanwhile_is_accepted(
    store: LocalStore, root: Path, tmp_path: Path
) -> None:
    other = published_elsewhere(tmp_path, SampleProducer())
    publication = begin(store)
    fill(publication)
    for part in ("artifacts", "assets"):
        shutil.copytree(other / part / KEY, root / part / KEY)
    publication.finalize(METADATA).close()
    assert staged(root) == []
    store.verify(KEY)


def test_other_content_published_meanwhile_is_a_collision(
    store: LocalStore, root: Path, tmp_path: Path
) -> None:
    other = published_elsewhere(tmp_path, SampleProducer().with_content(9))
    publication = begin(store)
    fill(publication)
    shutil.copytree(other / "artifacts" / KEY, root / "artifacts" / KEY)
    shutil.copytree(other / "assets" / KEY, root / "assets" / KEY)
    assert refusal(lambda: publication.finalize(METADATA)) is FailureCode.IDENTITY_COLLISION
    (name,) = os.listdir(root / "quarantine")
    assert name.split(".")[1] == "identity-collision"
    assert store.cleanup_quarantined(name).status is CleanupStatus.REMOVED
    lease = store.lookup(fine_tune(0)).lease
    assert lease is not None
    assert bytes(lease.buffer("encoder.weight")) == bytes([9]) * 24
    lease.close()


def test_a_competitor_that_is_no_artifact_fails_the_publication(
    store: LocalStore, root: Path
) -> None:
    publication = begin(store)
    fill(publication)
    (root / "artifacts" / KEY).mkdir()
    with pytest.raises(WeightLeaseError) as caught:
        publication.finalize(METADATA)
    assert caught.value.failure.details["competing_entry"] == "preserved"
    assert (root / "artifacts" / KEY).exists()


def test_waiting_for_readers_of_a_competitor_is_bounded(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "domain", wait=WaitPolicy(0.2))
    publication = begin(store)
    fill(publication)
    root = Path(store.root)
    other = published_elsewhere(tmp_path, SampleProducer())
    for part in ("artifacts", "assets"):
        shutil.copytree(other / part / KEY, root / part / KEY)
    with store.open_artifact(KEY):
        code = refusal(lambda: publication.finalize(METADATA))
    assert code is FailureCode.ACTIVE_BUILD_TIMEOUT


def build(store: LocalStore) -> StoreStatus:
    result = store.get_or_build(SampleProducer())
    assert result.lease is not None, result
    result.lease.close()
    return result.status
