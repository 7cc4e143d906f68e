"""What the store needs of a file system, and which file systems it trusts with that.

Locks, rename and page-cache sharing have to be the local kernel's, so a domain lives on a known
local file system or on none. The type is that of the longest mount point above the path in
/proc/self/mountinfo.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from weightlease.errors import Failure, FailureCode, ManifestError, Stage, WeightLeaseError
from weightlease.names import StorageClass

MOUNT_TABLE = "/proc/self/mountinfo"
READ_ONLY_FILE = 0o444
PRIVATE_DIRECTORY = 0o700

_DISK = frozenset(
    {
        "aufs",
        "bcachefs",
        "btrfs",
        "erofs",
        "ext2",
        "ext3",
        "ext4",
        "f2fs",
        "fuseblk",
        "jfs",
        "ntfs3",
        "overlay",
        "reiserfs",
        "rootfs",
        "xfs",
        "zfs",
    }
)
_MEMORY = frozenset({"tmpfs", "ramfs"})
_REMOTE = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse.gcsfuse",
        "fuse.s3fs",
        "fuse.sshfs",
        "gcsfuse",
        "glusterfs",
        "gpfs",
        "lustre",
        "nfs",
        "nfs4",
        "orangefs",
        "panfs",
        "s3fs",
        "smb3",
        "sshfs",
        "virtiofs",
        "wekafs",
    }
)
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_STRUCTURE = {
    errno.EACCES,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
}
_OCTAL = re.compile(r"\\([0-7]{3})")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


# ---- which file system ----


def filesystem_type(path: str, mount_table: str | None = None) -> str:
    """Kernel type of the file system that holds `path`, which need not exist.

    Raises:
        WeightLeaseError: domain_policy_mismatch when no mount point matches.
        OSError: the mount table cannot be read.

    """
    if mount_table is None:
        with open(MOUNT_TABLE, encoding="utf-8", errors="surrogateescape") as file:
            mount_table = file.read()
    real = os.path.realpath(path)
    best_length, best_type = -1, ""
    for line in mount_table.splitlines():
        mount, _, source = line.partition(" - ")
        fields, kind = mount.split(" "), source.split(" ")[0]
        if len(fields) < 5 or not kind:
            continue
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4])
        # of two mounts on one point, the later line is the one on top
        if _is_below(real, point) and len(point) >= best_length:
            best_length, best_type = len(point), kind
    if not best_type:
        raise _refused(f"cannot tell which file system holds {real!r}")
    return best_type


def storage_class_of(kind: str) -> StorageClass:
    """The storage class of a file system type.

    Raises:
        WeightLeaseError: domain_policy_mismatch for a remote or unknown type.

    """
    if kind in _DISK:
        return StorageClass.DISK
    if kind in _MEMORY:
        return StorageClass.MEMORY
    known = "is not local to this node" if kind in _REMOTE else "is not known to be local"
    raise _refused(f"file system type {kind!r} {known}; use a local disk or a tmpfs")


def _is_below(path: str, point: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def _refused(message: str) -> WeightLeaseError:
    return WeightLeaseError.of(Stage.CONFIGURATION, FailureCode.DOMAIN_POLICY_MISMATCH, message)


# ---- what an OSError means ----


def storage_failure(error: OSError, operation: str, **details: object) -> Failure:
    """A failed system call as a retryable failure: out of space, or storage that is unwell."""
    if error.errno in _NO_SPACE:
        stage, code = Stage.CAPACITY, FailureCode.ENOSPC
    else:
        stage, code = Stage.DOMAIN, FailureCode.DOMAIN_UNAVAILABLE
    return Failure(stage, code, retryable=True, message=f"{operation}: {error}", details=details)


@contextmanager
def storage_errors(operation: str) -> Iterator[None]:
    """Turn an OSError of the enclosed calls into the storage failure that it is.

    Raises:
        WeightLeaseError: domain_unavailable or enospc, both retryable.

    """
    try:
        yield
    except OSError as error:
        raise WeightLeaseError(storage_failure(error, operation)) from error


def is_out_of_space(error: OSError) -> bool:
    """Whether a failed call says that the file system or a quota is full."""
    return error.errno in _NO_SPACE


def is_structure_error(error: OSError) -> bool:
    """Whether a failed call says that the tree has the wrong shape, not that storage is unwell."""
    return error.errno in _STRUCTURE


def error_details(error: OSError) -> dict[str, object]:
    """An OSError as plain values for a failure's details."""
    return {"errno": error.errno, "message": str(error)}


# ---- durable writes ----


def sync_directory(path: str) -> None:
    """Make the directory entries of `path` durable."""
    fd = os.open(path, _DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Append all of `data` to `fd`.

    Raises:
        OSError: the write failed, ENOSPC included.

    """
    view = memoryview(data).cast("B")
    while view:
        written = os.write(fd, view)
        if written <= 0:
            raise OSError(errno.EIO, "short write")
        view = view[written:]


def write_new_file(path: str, data: bytes, mode: int = READ_ONLY_FILE) -> None:
    """Create `path` with `data`, durable but for its directory entry.

    Raises:
        FileExistsError: the file exists.
        OSError: the write failed; the file is gone again.

    """
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o600)
    try:
        write_all(fd, data)
        os.fchmod(fd, mode)
        os.fsync(fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise
    finally:
        os.close(fd)


def replace_file(path: str, data: bytes, mode: int = READ_ONLY_FILE) -> None:
    """Put `data` at `path` atomically and durably, over whatever is there."""
    temporary = f"{os.path.dirname(path)}/.{os.path.basename(path)}.{uuid.uuid4().hex}.tmp"
    write_new_file(temporary, data, mode)
    try:
        os.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    sync_directory(os.path.dirname(path))


# ---- careful reads ----


def open_beneath(root_fd: int, path: str) -> int:
    """Open the regular file at relative `path` below `root_fd` for reading; no link is followed.

    Raises:
        ManifestError: the path leaves its root or is not plain.
        OSError: ELOOP for a link, ENOENT and so on.

    """
    parts = path.split("/")
    if "\0" in path or "\\" in path or any(part in {"", ".", ".."} for part in parts):
        raise ManifestError(f"path {path[:200]!r} is not a plain relative path")
    directory = os.dup(root_fd)
    try:
        for part in parts[:-1]:
            below = os.open(part, _DIRECTORY, dir_fd=directory)
            os.close(directory)
            directory = below
        fd = os.open(parts[-1], _FILE | os.O_NONBLOCK, dir_fd=directory)
    finally:
        os.close(directory)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.ENOENT, "not a regular file", path)
    return fd


def open_directory(path: str) -> int:
    """Open a directory without following a link at its end."""
    return os.open(path, _DIRECTORY)


def open_file(name: str, dir_fd: int | None = None) -> int:
    """Open a file for reading without following a link at its end."""
    # O_NONBLOCK: a FIFO in the file's place must not hang the reader
    return os.open(name, _FILE | os.O_NONBLOCK, dir_fd=dir_fd)


def require_published(info: os.stat_result, name: str, *, trusted: bool) -> None:
    """Check that an open file is one regular file, and with `trusted` ours alone and read-only.

    Raises:
        ManifestError: what is wrong with the file.

    """
    if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1:
        raise ManifestError(f"{name!r} is not one regular file with one link")
    if trusted and (info.st_uid != os.geteuid() or info.st_mode & 0o222):
        raise ManifestError(
            f"{name!r} must belong to uid {os.geteuid()} without write bits, "
            f"but has uid {info.st_uid} and mode {stat.S_IMODE(info.st_mode):#o}"
        )


def read_bounded(name: str, limit: int, *, dir_fd: int | None = None, trusted: bool) -> bytes:
    """The bytes of a published file of at most `limit` bytes.

    Raises:
        ManifestError: not one regular read-only file of ours, too long, or it changed meanwhile.
        OSError: opening or reading failed.

    """
    fd = open_file(name, dir_fd)
    try:
        info = os.fstat(fd)
        require_published(info, os.path.basename(name), trusted=trusted)
        if info.st_size > limit:
            raise ManifestError(f"{name!r} has {info.st_size} bytes, more than {limit}")
        data = os.read(fd, info.st_size)
        while len(data) < info.st_size:
            more = os.read(fd, info.st_size - len(data))
            if not more:
                raise ManifestError(f"{name!r} ended at {len(data)} of {info.st_size} bytes")
            data += more
        return data
    finally:
        os.close(fd)


def exists(path: str) -> bool:
    """Whether there is an entry at `path`; a link counts as itself."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


# ---- trees ----


def tree_bytes(path: str) -> int:
    """Sum of the sizes of the regular files at or below `path`; what vanishes meanwhile is 0."""
    try:
        info = os.lstat(path)
    except OSError:
        return 0
    if not stat.S_ISDIR(info.st_mode):
        return info.st_size if stat.S_ISREG(info.st_mode) else 0
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                info = os.lstat(os.path.join(directory, name))
                total += info.st_size if stat.S_ISREG(info.st_mode) else 0
    return total


def remove_tree(path: str) -> int:
    """Remove `path` and all below it, read-only directories too; returns the bytes freed.

    Raises:
        OSError: something could not be removed; what went before it is gone.

    """
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return 0
    if not stat.S_ISDIR(info.st_mode):
        os.unlink(path)
        return info.st_size
    if info.st_mode & stat.S_IRWXU != stat.S_IRWXU:
        os.chmod(path, PRIVATE_DIRECTORY)
    freed = sum(remove_tree(os.path.join(path, name)) for name in os.listdir(path))
    os.rmdir(path)
    return freed
