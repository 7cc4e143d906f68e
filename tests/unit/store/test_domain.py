"""A domain is what its first creator made of it, on a file system that can hold it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from weightlease import filesystem
from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.locks import Deadline, FileLock
from weightlease.names import StorageClass
from weightlease.policy import CapacityPolicy, DomainPolicy, WaitPolicy
from weightlease.store.local import LocalStore

TIGHT = DomainPolicy(capacity=CapacityPolicy(max_store_bytes=10**9))


def refusal(root: Path, policy: DomainPolicy | None = None) -> WeightLeaseError:
    with pytest.raises(WeightLeaseError) as caught:
        LocalStore(root, policy)
    return caught.value


def edit(path: Path, **fields: Any) -> None:
    document = json.loads(path.read_bytes()) | fields
    path.chmod(0o600)
    path.write_text(json.dumps(document))


def test_the_two_files_hold_exactly_the_fields_of_a_v1_domain(root: Path) -> None:
    domain = json.loads((root / "domain.json").read_bytes())
    assert domain.pop("domain_uuid")
    assert domain.pop("filesystem_type")
    assert domain == {
        "schema_version": 1,
        "scope": "node",
        "domain_id": "node",
        "backend": "local_filesystem",
        "storage_class": "disk",
    }
    assert json.loads((root / "domain-policy.json").read_bytes()) == {
        "schema_version": 1,
        "policy_version": 1,
        "max_artifact_bytes": None,
        "max_store_bytes": None,
        "min_free_bytes": 0,
        "eviction": "none",
    }


def test_every_directory_is_private(root: Path) -> None:
    modes = {path: path.stat().st_mode & 0o777 for path in [root, *root.iterdir()] if path.is_dir()}
    assert len(modes) == 8
    assert set(modes.values()) == {0o700}


def test_a_domain_keeps_its_name(store: LocalStore) -> None:
    assert LocalStore(store.root).domain.uuid == store.domain.uuid


@pytest.mark.parametrize("policy", [TIGHT, DomainPolicy(domain_id="other")])
def test_the_first_creators_settings_are_authoritative(root: Path, policy: DomainPolicy) -> None:
    failure = refusal(root, policy).failure
    assert (failure.code, failure.retryable) == (FailureCode.DOMAIN_POLICY_MISMATCH, False)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("domain.json", {"more": 1}),
        ("domain.json", {"schema_version": 2}),
        ("domain.json", {"schema_version": True}),
        ("domain.json", {"domain_uuid": ""}),
        ("domain-policy.json", {"build_admission": "serialized"}),
        ("domain-policy.json", {"policy_version": 0}),
        ("domain-policy.json", {"eviction": "lru"}),
    ],
)
def test_a_foreign_field_or_value_is_refused(root: Path, name: str, fields: dict[str, Any]) -> None:
    edit(root / name, **fields)
    assert refusal(root).failure.code is FailureCode.DOMAIN_POLICY_MISMATCH


def test_a_later_policy_version_is_accepted(root: Path) -> None:
    edit(root / "domain-policy.json", policy_version=7)
    assert LocalStore(root).domain.policy_version == 7


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "lustre", "ceph", "unheard-of"])
def test_a_refused_file_system_is_refused_before_the_root_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 8:1 / / rw - {kind} device rw\n")
    monkeypatch.setattr(filesystem, "MOUNT_TABLE", str(table))
    failure = refusal(tmp_path / "new").failure
    assert (failure.stage, failure.code) == (
        Stage.CONFIGURATION,
        FailureCode.DOMAIN_POLICY_MISMATCH,
    )
    assert not (tmp_path / "new").exists()


def test_the_wrong_storage_class_is_refused_before_the_root_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text("1 0 8:1 / / rw - ext4 device rw\n")
    monkeypatch.setattr(filesystem, "MOUNT_TABLE", str(table))
    failure = refusal(tmp_path / "new", DomainPolicy(storage_class=StorageClass.MEMORY)).failure
    assert failure.code is FailureCode.STORAGE_CLASS_MISMATCH
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["", "locks", "artifacts", "tmp", "quarantine", "deny", "leases"])
def test_a_directory_that_others_may_write_is_refused(root: Path, name: str) -> None:
    (root / name).chmod(0o770)
    failure = refusal(root).failure
    assert (failure.code, failure.retryable) == (FailureCode.DOMAIN_UNAVAILABLE, False)
    trusting = DomainPolicy(require_trusted_permissions=False)
    assert LocalStore(root, trusting).domain.uuid


@pytest.mark.parametrize("name", ["", "artifacts"])
def test_a_directory_of_another_user_is_refused_with_both_uids(root: Path, name: str) -> None:
    os.chown(root / name, 12345, 12345)
    failure = refusal(root).failure
    assert (failure.code, failure.retryable) == (FailureCode.DOMAIN_UNAVAILABLE, False)
    assert f"belongs to uid 12345, not to {os.geteuid()}" in failure.message


def test_a_link_in_a_directorys_place_is_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (root / "artifacts").rmdir()
    (root / "artifacts").symlink_to(tmp_path / "elsewhere")
    assert refusal(root).failure.code is FailureCode.DOMAIN_UNAVAILABLE


def test_waiting_for_another_initialiser_is_bounded_and_can_be_tried_again(root: Path) -> None:
    lock = FileLock.acquire(
        str(root / "locks/domain-init.lock"), exclusive=True, deadline=Deadline(0)
    )
    with pytest.raises(WeightLeaseError) as caught:
        LocalStore(root, wait=WaitPolicy(0.01))
    assert caught.value.failure.code is FailureCode.DOMAIN_UNAVAILABLE
    assert caught.value.failure.retryable
    lock.close()
    assert LocalStore(root).domain.uuid


def test_a_root_that_cannot_be_made_is_a_retryable_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    failure = refusal(tmp_path / "file/domain").failure
    assert (failure.code, failure.retryable) == (FailureCode.DOMAIN_UNAVAILABLE, True)


def test_the_memory_class_is_stored_as_tmpfs(tmp_path: Path) -> None:
    root = Path("/dev/shm") / f"weightlease-test-{os.getpid()}"
    try:
        LocalStore(root, DomainPolicy(storage_class=StorageClass.MEMORY))
        assert json.loads((root / "domain.json").read_bytes())["storage_class"] == "tmpfs"
    finally:
        filesystem.remove_tree(str(root))
