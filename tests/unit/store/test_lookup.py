"""What is wrong with an artifact decides what a lookup says, and whether it is denied."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from descriptors import open_descriptors
from sample_producer import ASSETS, PAYLOADS, SampleProducer, fine_tune, sha256
from store_conformance import flip_last_byte
from weightlease import filesystem
from weightlease.canonical import canonical_json
from weightlease.errors import Failure, FailureCode, Stage, WeightLeaseError
from weightlease.locks import Deadline, FileLock
from weightlease.policy import Validation
from weightlease.reports import InventoryState, StoreStatus
from weightlease.store import containment
from weightlease.store.artifact import OpenArtifact
from weightlease.store.local import LocalStore

PAYLOAD = "model.safetensors"
Damage = Callable[[Path], None]


@contextmanager
def writable(path: Path) -> Iterator[None]:
    mode = path.stat().st_mode
    path.chmod(0o755)
    yield
    path.chmod(mode)


def replace(path: Path, data: bytes) -> None:
    with writable(path.parent):
        path.unlink()
        path.write_bytes(data)
        path.chmod(0o444)


def edit(artifact: Path, name: str, *, rebind: bool, **fields: object) -> None:
    """Change fields of a metadata file; `rebind` makes READY agree with the changed manifest."""
    document = json.loads((artifact / name).read_bytes()) | fields
    replace(artifact / name, canonical_json(document))
    if rebind:
        ready = json.loads((artifact / "READY.json").read_bytes())
        digest = sha256((artifact / "manifest.json").read_bytes())
        replace(artifact / "READY.json", canonical_json(ready | {"manifest_sha256": digest}))


def hits(store: LocalStore) -> bool:
    lease = store.lookup(fine_tune(0)).lease
    if lease is not None:
        lease.close()
    return lease is not None


def add_entry(artifact: Path) -> None:
    with writable(artifact):
        (artifact / "foreign").write_bytes(b"")


def remove_payload(artifact: Path) -> None:
    with writable(artifact):
        (artifact / PAYLOAD).unlink()


def link_payload(artifact: Path) -> None:
    outside = artifact.parent.parent / "outside"
    shutil.copy(artifact / PAYLOAD, outside)
    with writable(artifact):
        (artifact / PAYLOAD).unlink()
        (artifact / PAYLOAD).symlink_to(outside)


def second_link(artifact: Path) -> None:
    os.link(artifact / PAYLOAD, artifact.parent.parent / "second")


def write_bits(artifact: Path) -> None:
    (artifact / PAYLOAD).chmod(0o644)


def open_directory(artifact: Path) -> None:
    artifact.chmod(0o755)


def foreign_owner(artifact: Path) -> None:
    os.chown(artifact / PAYLOAD, 12345, 12345)


def truncate(artifact: Path) -> None:
    replace(artifact / PAYLOAD, PAYLOADS[PAYLOAD][:-1])


def other_header(artifact: Path) -> None:
    replace(artifact / PAYLOAD, PAYLOADS[PAYLOAD].replace(b"scale", b"scalf"))


def garbage_manifest(artifact: Path) -> None:
    replace(artifact / "manifest.json", b"{")


def directory_in_place(artifact: Path) -> None:
    with writable(artifact):
        (artifact / "READY.json").unlink()
        (artifact / "READY.json").mkdir()


def lose_asset(artifact: Path) -> None:
    tree = artifact.parent.parent / "assets" / artifact.name
    with writable(tree):
        (tree / sha256(ASSETS["config.json"])).unlink()


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (add_entry, FailureCode.MANIFEST_CORRUPT),
        (remove_payload, FailureCode.MANIFEST_CORRUPT),
        (link_payload, FailureCode.MANIFEST_CORRUPT),
        (second_link, FailureCode.MANIFEST_CORRUPT),
        (write_bits, FailureCode.MANIFEST_CORRUPT),
        (open_directory, FailureCode.MANIFEST_CORRUPT),
        (foreign_owner, FailureCode.MANIFEST_CORRUPT),
        (other_header, FailureCode.MANIFEST_CORRUPT),
        (garbage_manifest, FailureCode.MANIFEST_CORRUPT),
        (directory_in_place, FailureCode.MANIFEST_CORRUPT),
        (lose_asset, FailureCode.MANIFEST_CORRUPT),
        (truncate, FailureCode.CHECKSUM_MISMATCH),
        (
            lambda it: edit(it, "manifest.json", rebind=False, format_metadata={}),
            FailureCode.CHECKSUM_MISMATCH,
        ),
        (
            lambda it: edit(it, "READY.json", rebind=False, artifact_content_sha256="0" * 64),
            FailureCode.CHECKSUM_MISMATCH,
        ),
        (
            lambda it: edit(it, "READY.json", rebind=False, integrity_mode="none"),
            FailureCode.MANIFEST_INCOMPATIBLE,
        ),
        (
            lambda it: edit(it, "READY.json", rebind=False, schema_version=2),
            FailureCode.MANIFEST_INCOMPATIBLE,
        ),
        (
            lambda it: edit(it, "manifest.json", rebind=True, schema_version=2),
            FailureCode.MANIFEST_INCOMPATIBLE,
        ),
        (
            lambda it: edit(it, "manifest.json", rebind=True, restorer_schema="other"),
            FailureCode.MANIFEST_INCOMPATIBLE,
        ),
    ],
)
def test_damage_is_named_denied_and_rebuilt(
    store: LocalStore, root: Path, key: str, damage: Damage, expected: FailureCode
) -> None:
    damage(root / "artifacts" / key)
    found = store.lookup(fine_tune(0))
    assert found.status is StoreStatus.INVALID
    assert found.failure is not None
    assert (found.failure.code, found.failure.retryable) == (expected, False)
    marker = json.loads((root / "deny" / f"{key}.json").read_bytes())
    assert marker == {
        "schema_version": 1,
        "stage": str(found.failure.stage),
        "reason": str(expected),
        "message": found.failure.message,
    }
    later = store.lookup(fine_tune(0)).failure
    assert later is not None
    assert later.code is FailureCode.ARTIFACT_DENIED
    assert any(entry.state is InventoryState.DENIED for entry in store.inspect().inventory)
    rebuilt = store.get_or_build(SampleProducer())
    assert rebuilt.status is StoreStatus.BUILT, rebuilt
    assert rebuilt.lease is not None
    rebuilt.lease.close()
    assert not (root / "deny" / f"{key}.json").exists()
    assert [path.name.split(".")[1] for path in (root / "quarantine").iterdir()] == [
        "validation_failure"
    ]


def test_white_space_in_a_manifest_does_not_matter(store: LocalStore, root: Path, key: str) -> None:
    path = root / "artifacts" / key / "manifest.json"
    replace(path, json.dumps(json.loads(path.read_bytes()), indent=2).encode())
    assert hits(store)


def test_an_artifact_under_another_key_is_not_that_artifact(
    store: LocalStore, root: Path, key: str
) -> None:
    shutil.copytree(root / "artifacts" / key, root / "artifacts" / fine_tune(1).key)
    shutil.copytree(root / "assets" / key, root / "assets" / fine_tune(1).key)
    found = store.lookup(fine_tune(1)).failure
    assert found is not None
    assert found.code is FailureCode.MANIFEST_INCOMPATIBLE


def test_an_invalidated_directory_is_denied(store: LocalStore, root: Path, key: str) -> None:
    (root / "artifacts" / key).chmod(0o1555)
    found = store.lookup(fine_tune(0)).failure
    assert found is not None
    assert found.code is FailureCode.ARTIFACT_DENIED


def test_a_deny_marker_without_an_artifact_is_a_miss(store: LocalStore, root: Path) -> None:
    (root / "deny" / f"{fine_tune(0).key}.json").write_bytes(b"{}")
    assert store.lookup(fine_tune(0)).status is StoreStatus.MISS


def test_an_io_error_is_retryable_and_denies_nothing(
    store: LocalStore, root: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int, count: int, offset: int) -> bytes:
        raise OSError(errno.EIO, "injected")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", broken)
        found = store.lookup(fine_tune(0))
    assert found.status is StoreStatus.FAILED
    assert found.failure is not None
    assert (found.failure.code, found.failure.retryable) == (FailureCode.DOMAIN_UNAVAILABLE, True)
    assert list((root / "deny").iterdir()) == []
    assert hits(store)


@pytest.mark.parametrize("leased", [True, False])
def test_an_artifact_that_cannot_be_denied_is_taken_out_of_service(
    store: LocalStore, root: Path, key: str, monkeypatch: pytest.MonkeyPatch, leased: bool
) -> None:
    lease = store.lookup(fine_tune(0)).lease if leased else None
    flip_last_byte(root / "artifacts" / key / PAYLOAD)

    def full(path: str, data: bytes, mode: int = 0) -> None:
        raise OSError(errno.ENOSPC, "injected")

    monkeypatch.setattr(filesystem, "write_new_file", full)
    found = store.lookup(fine_tune(0), validation=Validation.FULL_CHECKSUM)
    assert found.failure is not None
    assert found.failure.code is FailureCode.ENOSPC
    done = found.failure.details["containment"]
    assert done["invalidation_marker"] == "durable"
    assert done["quarantine"] == ("deferred_for_active_lease" if leased else "completed")
    assert store.lookup(fine_tune(0)).status is not StoreStatus.HIT
    if lease is not None:
        lease.close()


def test_a_replacement_is_never_taken_out_of_service_by_mistake(
    store: LocalStore, root: Path, key: str
) -> None:
    paths = store.domain.paths
    shared = FileLock.acquire(paths.artifact_lock(key), exclusive=False, deadline=Deadline(0))
    (root / "artifacts" / key).rename(root / "old")
    (root / "artifacts" / key).mkdir()

    class Replacing(FileLock):
        def close(self) -> None:
            super().close()
            if (root / "old").exists():  # a lock closes once more when it is collected
                (root / "artifacts" / key).rename(root / "invalid")
                (root / "old").rename(root / "artifacts" / key)

    replacing = Replacing(shared.hand_over(), shared.path)
    done = containment.contain_undeniable(paths, key, replacing, Deadline(0))
    assert done["quarantine"] == "already_replaced"
    assert hits(store)


def test_metadata_validation_does_not_see_a_flipped_byte_and_verify_does(
    store: LocalStore, root: Path, key: str
) -> None:
    flip_last_byte(root / "artifacts" / key / PAYLOAD)
    assert hits(store)
    with pytest.raises(WeightLeaseError) as caught:
        store.verify(key)
    assert caught.value.failure.code is FailureCode.CHECKSUM_MISMATCH


def test_verify_reads_assets_too(store: LocalStore, root: Path, key: str) -> None:
    assert store.verify(key).artifact_key == key
    flip_last_byte(root / "assets" / key / sha256(ASSETS["config.json"]))
    with pytest.raises(WeightLeaseError) as caught:
        store.verify(key)
    assert caught.value.failure.code is FailureCode.CHECKSUM_MISMATCH


def test_a_weak_lookup_does_not_outlive_a_denial_by_a_strong_one(
    store: LocalStore, key: str
) -> None:
    artifact = store.open_artifact(key)
    other = store.open_artifact(key)
    failure = Failure(Stage.VALIDATION, FailureCode.CHECKSUM_MISMATCH, False, "found by another")
    containment.write_denial(store.domain.paths, key, failure)
    for each in (artifact, other):
        with pytest.raises(WeightLeaseError) as caught:
            each.to_lease()
        assert caught.value.failure.code is FailureCode.ARTIFACT_DENIED
        each.close()


def test_a_file_swapped_after_validation_is_not_leased(
    store: LocalStore, root: Path, key: str
) -> None:
    with store.open_artifact(key) as artifact:
        replace(root / "artifacts" / key / PAYLOAD, PAYLOADS[PAYLOAD])
        before = open_descriptors()
        with pytest.raises(WeightLeaseError):
            artifact.to_lease()
        assert open_descriptors() == before


def test_an_open_artifact_names_its_files_below_any_mount(store: LocalStore, key: str) -> None:
    with store.open_artifact(key) as artifact:
        assert isinstance(artifact, OpenArtifact)
        assert artifact.payload_path(PAYLOAD, "/mnt") == f"/mnt/artifacts/{key}/{PAYLOAD}"
        asset = artifact.asset_path("config.json")
        assert Path(asset).read_bytes() == ASSETS["config.json"]
        assert Path(artifact.manifest_path()).read_bytes() == artifact.manifest_bytes
        assert sha256(artifact.manifest_bytes) == artifact.manifest_sha256
        assert artifact.size_bytes >= len(PAYLOADS[PAYLOAD])
        for missing in (artifact.payload_path, artifact.asset_path):
            with pytest.raises(KeyError):
                missing("absent")


def test_a_denied_artifact_is_replaced_once_its_readers_have_gone(
    store: LocalStore, root: Path, key: str
) -> None:
    lease = store.lookup_key(key).lease
    assert lease is not None
    flip_last_byte(root / "artifacts" / key / PAYLOAD)
    with pytest.raises(WeightLeaseError):
        store.verify(key)
    assets = root / "assets" / key
    with lease:
        waiting = store.get_or_build(SampleProducer(), timeout=0.1)
        assert waiting.status is StoreStatus.TIMEOUT
        assert (root / "artifacts" / key / PAYLOAD).exists()
        assert assets.exists()
    built = store.get_or_build(SampleProducer())
    assert built.status is StoreStatus.BUILT
    assert built.lease is not None
    built.lease.close()
    assert len(os.listdir(root / "quarantine")) == 1


def test_descriptors_are_given_back(store: LocalStore, root: Path, key: str) -> None:
    before = open_descriptors()
    lease = store.lookup_key(key).lease
    assert lease is not None
    lease.close()
    store.lookup(fine_tune(5))
    flip_last_byte(root / "artifacts" / key / PAYLOAD)
    store.lookup(fine_tune(0), validation=Validation.FULL_CHECKSUM)
    assert open_descriptors() == before


@pytest.mark.parametrize("key", ["", "../../etc", "A" * 64, "0" * 63])
def test_what_is_no_key_is_refused(store: LocalStore, key: str) -> None:
    found = store.lookup_key(key).failure
    assert found is not None
    assert found.code is FailureCode.INVALID_CONFIG
