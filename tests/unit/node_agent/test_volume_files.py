"""A volume's folder and tree, whatever a source is called and whatever lies about."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from small_artifact import sha256
from weightlease.errors import FailureCode, WeightLeaseError
from weightlease.manifest import AssetEntry, FileEntry
from weightlease.names import StorageClass
from weightlease.wire import PublishVolumeParams
from weightlease_node_agent.volumes.checks import check_publish
from weightlease_node_agent.volumes.directory import (
    SCHEMA_VERSION,
    VolumeDirectory,
    VolumeLease,
    VolumeRecord,
    handle_of,
)
from weightlease_node_agent.volumes.tree import plan_links, write_tree

RECORD = VolumeRecord(
    SCHEMA_VERSION,
    "csi-1",
    "/target",
    "team-a",
    "server-0",
    "uid-0",
    "default",
    "minilm",
    VolumeLease(StorageClass.DISK, "team-a", "a" * 64, "b" * 32, assets=True),
)


class Named:
    """A manifest as far as a tree looks at it."""

    def __init__(self, payloads: list[str], assets: list[str]) -> None:
        self.files = [FileEntry(name, 1, sha256(b"")) for name in payloads]
        self.assets = [AssetEntry(path, 1, sha256(path.encode())) for path in assets]


def links(payloads: list[str], assets: list[str]) -> dict[str, str]:
    manifest: Any = Named(payloads, assets)
    return plan_links(manifest)


def test_each_link_leads_from_its_own_depth_to_the_content(tmp_path: Path) -> None:
    planned = links(["model.safetensors"], ["a/b/c.txt", "config.json"])
    write_tree(tmp_path, planned)
    content = {".content/payloads/model.safetensors": b"weights"}
    content |= {f".content/assets/{sha256(name)}": name for name in (b"a/b/c.txt", b"config.json")}
    for place, data in content.items():
        (tmp_path / place).write_bytes(data)
    files = tmp_path / "files"
    assert (files / "model.safetensors").read_bytes() == b"weights"
    assert (files / "a" / "b" / "c.txt").read_bytes() == b"a/b/c.txt"
    assert (files / "config.json").read_bytes() == b"config.json"
    assert sorted(os.listdir(files)) == ["a", "config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("payloads", "assets"),
    [
        (["a.safetensors"], ["a.safetensors"]),
        (["a"], ["a/b"]),
        ([], ["a", "a/b"]),
        ([], ["a/b", "a"]),
        ([], ["a/b/c", "a/b"]),
    ],
)
def test_names_that_one_tree_cannot_hold_are_refused(
    payloads: list[str], assets: list[str]
) -> None:
    with pytest.raises(WeightLeaseError) as refused:
        links(payloads, assets)
    assert refused.value.failure.code is FailureCode.UNSUPPORTED


def test_a_record_survives_and_its_folder_is_for_nobody_else(tmp_path: Path) -> None:
    root = tmp_path / "volumes"
    directory = VolumeDirectory(root)
    assert directory.load() == []
    assert root.stat().st_mode & 0o777 == 0o700
    directory.prepare(RECORD.handle)
    directory.commit(RECORD)
    assert (root / RECORD.handle / "volume.json").stat().st_mode & 0o777 == 0o600
    assert VolumeDirectory(root).load() == [RECORD]
    directory.retract(RECORD.handle)
    assert VolumeDirectory(root).load() == []
    assert os.listdir(root) == []


def test_an_open_folder_is_closed_before_anything_is_served(tmp_path: Path) -> None:
    root = tmp_path / "volumes"
    root.mkdir(mode=0o755)
    VolumeDirectory(root).load()
    assert root.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[" * 9999,
        b"\xff",
        b'{"schema_version": 1}',
        json.dumps(msgspec.to_builtins(RECORD) | {"schema_version": 2}).encode(),
        json.dumps(msgspec.to_builtins(RECORD) | {"volume_id": "csi-2"}).encode(),
        json.dumps(msgspec.to_builtins(RECORD) | {"more": 1}).encode(),
        json.dumps(msgspec.to_builtins(RECORD)).encode() + b" " * 20_000,
    ],
)
def test_a_record_that_is_none_ends_its_volume(tmp_path: Path, content: bytes) -> None:
    directory = VolumeDirectory(tmp_path)
    directory.prepare(RECORD.handle)
    (tmp_path / RECORD.handle / "volume.json").write_bytes(content)
    assert directory.load() == []
    assert not (tmp_path / RECORD.handle).exists()


def test_what_is_no_volume_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "driver.sock").touch()
    (tmp_path / "notes").mkdir()
    elsewhere = tmp_path / "notes" / "kept"
    elsewhere.touch()
    (tmp_path / handle_of("planted")).symlink_to(tmp_path / "notes")
    assert VolumeDirectory(tmp_path).load() == []
    assert elsewhere.exists()


def test_a_handle_has_one_length_and_no_path_in_it() -> None:
    handles = {handle_of(name) for name in ("csi-1", "../../etc", "", "x" * 9999)}
    assert len(handles) == 4
    assert {len(handle) for handle in handles} == {32}
    assert all(handle.isalnum() for handle in handles)


def test_a_pod_without_a_service_account_and_a_static_pods_uid_pass() -> None:
    check_publish(PublishVolumeParams("csi-1", "/t", "kube-system", "etcd-node.example", "f" * 32))
