"""File systems that are trusted, errors that are told apart, files that are opened with care."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from descriptors import open_descriptors
from weightlease import filesystem
from weightlease.errors import FailureCode, ManifestError, Stage, WeightLeaseError
from weightlease.names import StorageClass

TABLE = """\
1 0 8:1 / / rw - ext4 /dev/root rw
2 1 8:2 / /data rw - xfs /dev/data rw
3 1 0:9 / /data\\040space rw shared:1 - tmpfs tmpfs rw
4 2 0:8 / /data/nfs rw - nfs4 server:/x rw
5 1 8:3 / /top rw - ext4 /dev/a rw
6 5 0:7 / /top rw - tmpfs tmpfs rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/data", "xfs"),
        ("/data/not/there/yet", "xfs"),
        ("/database", "ext4"),
        ("/data space/x", "tmpfs"),
        ("/data/nfs/x", "nfs4"),
        ("/data/../top/x", "tmpfs"),
    ],
)
def test_the_longest_and_topmost_mount_decides(path: str, kind: str) -> None:
    assert filesystem.filesystem_type(path, TABLE) == kind


def test_the_real_mount_table_is_read(tmp_path: Path) -> None:
    assert filesystem.storage_class_of(filesystem.filesystem_type(str(tmp_path)))


def test_a_table_without_a_match_is_refused() -> None:
    with pytest.raises(WeightLeaseError):
        filesystem.filesystem_type("/x", "")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("ext4", StorageClass.DISK), ("overlay", StorageClass.DISK), ("tmpfs", StorageClass.MEMORY)],
)
def test_local_types_have_a_storage_class(kind: str, expected: StorageClass) -> None:
    assert filesystem.storage_class_of(kind) is expected


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "lustre", "ceph", "virtiofs", "newfs", ""])
def test_remote_and_unknown_types_are_refused(kind: str) -> None:
    with pytest.raises(WeightLeaseError) as caught:
        filesystem.storage_class_of(kind)
    failure = caught.value.failure
    assert failure.code is FailureCode.DOMAIN_POLICY_MISMATCH
    assert (failure.stage, failure.retryable) == (Stage.CONFIGURATION, False)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, FailureCode.ENOSPC),
        (errno.EDQUOT, FailureCode.ENOSPC),
        (errno.EIO, FailureCode.DOMAIN_UNAVAILABLE),
        (errno.EMFILE, FailureCode.DOMAIN_UNAVAILABLE),
    ],
)
def test_a_failed_call_is_full_or_unwell_and_worth_a_retry(number: int, code: FailureCode) -> None:
    with pytest.raises(WeightLeaseError) as caught, filesystem.storage_errors("cannot try"):
        raise OSError(number, "injected")
    assert (caught.value.failure.code, caught.value.failure.retryable) == (code, True)


def test_an_io_error_is_not_a_wrong_tree() -> None:
    assert not filesystem.is_structure_error(OSError(errno.EIO, ""))
    assert filesystem.is_structure_error(OSError(errno.ELOOP, ""))


# ---- opening and reading ----


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "root/sub").mkdir(parents=True)
    (tmp_path / "root/sub/file").write_bytes(b"inside")
    (tmp_path / "outside").write_bytes(b"outside")
    (tmp_path / "root/link").symlink_to(tmp_path / "outside")
    (tmp_path / "root/sub/up").symlink_to("..")
    os.mkfifo(tmp_path / "root/fifo")
    return tmp_path / "root"


def test_a_file_below_its_root_opens(tree: Path) -> None:
    root = filesystem.open_directory(str(tree))
    fd = filesystem.open_beneath(root, "sub/file")
    assert os.read(fd, 99) == b"inside"
    os.close(fd)
    os.close(root)


@pytest.mark.parametrize(
    "path",
    ["../outside", "/etc/hostname", "sub/../../outside", "./sub", "", "sub//file", "a\\b", "a\0b"],
)
def test_a_path_that_could_leave_its_root_is_refused(tree: Path, path: str) -> None:
    root = filesystem.open_directory(str(tree))
    with pytest.raises(ManifestError):
        filesystem.open_beneath(root, path)
    os.close(root)


@pytest.mark.parametrize("path", ["link", "sub/up/sub/file", "fifo", "sub", "absent"])
def test_links_and_what_is_no_file_do_not_open(tree: Path, path: str) -> None:
    root = filesystem.open_directory(str(tree))
    before = open_descriptors()
    with pytest.raises(OSError, match=r".+"):
        filesystem.open_beneath(root, path)
    assert open_descriptors() == before
    os.close(root)


def test_a_published_file_has_one_link_our_uid_and_no_write_bit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    path.chmod(0o644)
    with pytest.raises(ManifestError, match="write bits"):
        filesystem.read_bounded(str(path), 9, trusted=True)
    path.chmod(0o444)
    assert filesystem.read_bounded(str(path), 9, trusted=True) == b"x"
    os.link(path, tmp_path / "second")
    with pytest.raises(ManifestError, match="one link"):
        filesystem.read_bounded(str(path), 9, trusted=True)


def test_a_file_above_its_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    with pytest.raises(ManifestError, match="more than 4"):
        filesystem.read_bounded(str(tmp_path / "file"), 4, trusted=False)


def test_a_pipe_in_a_files_place_does_not_hang_the_reader(tree: Path) -> None:
    with pytest.raises(ManifestError):
        filesystem.read_bounded(str(tree / "fifo"), 9, trusted=False)


# ---- writing and removing ----


def test_a_new_file_never_replaces_one(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    filesystem.write_new_file(path, b"first")
    with pytest.raises(FileExistsError):
        filesystem.write_new_file(path, b"second")
    assert Path(path).read_bytes() == b"first"
    assert Path(path).stat().st_mode & 0o777 == 0o444


def test_a_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "injected")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="injected"):
        filesystem.replace_file(str(tmp_path / "file"), b"data")
    assert list(tmp_path.iterdir()) == []


def test_a_tree_goes_with_its_read_only_directories(tmp_path: Path) -> None:
    (tmp_path / "tree/sub").mkdir(parents=True)
    (tmp_path / "tree/sub/file").write_bytes(b"12345")
    (tmp_path / "tree/link").symlink_to(tmp_path)
    (tmp_path / "tree/sub").chmod(0o555)
    (tmp_path / "tree").chmod(0o555)
    assert filesystem.tree_bytes(str(tmp_path / "tree")) == 5
    assert filesystem.remove_tree(str(tmp_path / "tree")) >= 5
    assert list(tmp_path.iterdir()) == []
    assert filesystem.remove_tree(str(tmp_path / "tree")) == 0
