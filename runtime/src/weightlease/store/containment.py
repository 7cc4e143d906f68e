"""Taking an artifact out of service: deny marker, sticky bit, quarantine.

    deny/<key>.json   {"schema_version": 1, "stage", "reason": <code>, "message"}     0444

Three means, from the mildest: a deny marker beside the artifact; the sticky bit on its directory,
which needs no new directory entry and so works on a full disk; a move to quarantine, under the
exclusive artifact lock. A published directory has no write bit, and overlayfs and tmpfs refuse to
rename such a directory for an unprivileged owner. So a move marks the open inode invalid durably,
adds the owner's write bit alone, renames, takes the bit away again, makes both parents durable,
and only then clears the mark.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from contextlib import suppress

from weightlease import filesystem
from weightlease.canonical import canonical_json
from weightlease.errors import Failure, ManifestError, WeightLeaseError
from weightlease.locks import Deadline, FileLock
from weightlease.store.failpoints import Point, reach
from weightlease.store.layout import Paths, QuarantineReason

_WRITE_BITS = 0o222
_MAX_DENY_BYTES = 64 * 1024


# ---- deny marker ----


def write_denial(paths: Paths, key: str, failure: Failure) -> None:
    """Refuse lookups of `key` from now on; an existing marker is left as it is.

    Raises:
        OSError: the marker could not be made durable.

    """
    document = {
        "schema_version": 1,
        "stage": str(failure.stage),
        "reason": str(failure.code),
        "message": failure.message,
    }
    with suppress(FileExistsError):
        filesystem.write_new_file(paths.denial(key), canonical_json(document))
    filesystem.sync_directory(paths.deny)


def read_denial(path: str) -> str:
    """The reason in a deny marker; empty when it cannot be read."""
    try:
        document = json.loads(filesystem.read_bounded(path, _MAX_DENY_BYTES, trusted=False))
        reason = document["reason"]
    except (OSError, ValueError, KeyError, TypeError, ManifestError):
        return ""
    return reason if isinstance(reason, str) else ""


def remove_denial(paths: Paths, key: str) -> None:
    """Lift a deny marker; needs the exclusive artifact lock."""
    if filesystem.exists(paths.denial(key)):
        os.unlink(paths.denial(key))
        filesystem.sync_directory(paths.deny)


# ---- sticky bit ----


def is_invalidated(info: os.stat_result) -> bool:
    """Whether an artifact directory carries the invalidation mark."""
    return bool(info.st_mode & stat.S_ISVTX)


def invalidate(fd: int) -> None:
    """Put the invalidation mark on an open artifact directory, durably."""
    _set_mode(fd, stat.S_IMODE(os.fstat(fd).st_mode) | stat.S_ISVTX)


def _set_mode(fd: int, mode: int) -> None:
    os.fchmod(fd, mode)
    found = stat.S_IMODE(os.fstat(fd).st_mode)
    if found != mode:
        raise OSError(errno.EIO, f"directory has mode {found:#o} after fchmod to {mode:#o}")
    os.fsync(fd)


# ---- quarantine ----


def quarantine(paths: Paths, key: str, reason: QuarantineReason) -> str | None:
    """Move the artifact of `key` to quarantine; needs the exclusive artifact lock.

    Returns the new path, or None when there was nothing to move.
    """
    if not filesystem.exists(paths.artifact(key)):
        return None
    destination = paths.new_quarantine(key, reason)
    move(paths.artifact(key), destination)
    return destination


def move(source: str, destination: str) -> None:
    """Rename an artifact or staging directory between two directories of the store, durably."""
    if not stat.S_ISDIR(os.lstat(source).st_mode):
        os.rename(source, destination)
        _sync_parents(source, destination)
        return
    fd = filesystem.open_directory(source)
    try:
        immutable = stat.S_IMODE(os.fstat(fd).st_mode) & ~_WRITE_BITS
        marked = immutable | stat.S_ISVTX
        _set_mode(fd, marked)
        os.fchmod(fd, marked | stat.S_IWUSR)
        try:
            os.rename(source, destination)
        except BaseException:
            _set_mode(fd, immutable)
            raise
        _set_mode(fd, marked)
        _sync_parents(source, destination)
        _set_mode(fd, immutable & ~stat.S_ISVTX)
    finally:
        os.close(fd)


def _sync_parents(source: str, destination: str) -> None:
    filesystem.sync_directory(os.path.dirname(source))
    filesystem.sync_directory(os.path.dirname(destination))


def finish_moves(paths: Paths, key: str) -> None:
    """Complete the moves to quarantine of `key` that a crash cut off after their rename."""
    for path in entries(paths.quarantine, key):
        info = os.lstat(path)
        if not stat.S_ISDIR(info.st_mode) or not is_invalidated(info):
            continue
        fd = filesystem.open_directory(path)
        try:
            _set_mode(fd, stat.S_IMODE(info.st_mode) & ~_WRITE_BITS & ~stat.S_ISVTX)
        finally:
            os.close(fd)
        filesystem.sync_directory(paths.quarantine)


def remove_entries(directory: str, prefix: str) -> int:
    """Remove every entry `<prefix>.*` of `directory`; returns the bytes freed."""
    found = entries(directory, prefix)
    freed = sum(filesystem.remove_tree(path) for path in found)
    if found:
        filesystem.sync_directory(directory)
    return freed


def entries(directory: str, prefix: str) -> list[str]:
    """Paths of the entries `<prefix>.*` of `directory`, sorted."""
    names = sorted(name for name in os.listdir(directory) if name.startswith(f"{prefix}."))
    return [f"{directory}/{name}" for name in names]


# ---- what to do when one of them fails ----


def contain_publication(paths: Paths, key: str) -> dict[str, object]:
    """Take back an artifact whose publication broke after its rename; needs the exclusive lock.

    Returns what was done. One of mark and move is enough.

    Raises:
        OSError: neither could be done, so the outcome is uncertain.

    """
    done: dict[str, object] = {}
    mark_error: OSError | None = None
    try:
        reach(Point.BEFORE_CONTAINMENT)
        fd = filesystem.open_directory(paths.artifact(key))
        try:
            invalidate(fd)
        finally:
            os.close(fd)
        done["invalidation_marker"] = "durable"
    except OSError as error:
        mark_error = error
        done["invalidation_marker_error"] = filesystem.error_details(error)
    try:
        reach(Point.BEFORE_CONTAINMENT)
        moved = quarantine(paths, key, QuarantineReason.PUBLICATION_FAILURE)
        done["quarantine"] = "already_absent" if moved is None else "completed"
    except OSError as error:
        done["quarantine"] = "failed"
        done["quarantine_error"] = filesystem.error_details(error)
        if mark_error is not None:
            raise error from mark_error
    return done


def contain_undeniable(
    paths: Paths, key: str, shared: FileLock, deadline: Deadline
) -> dict[str, object]:
    """Take an invalid artifact out of service when its deny marker could not be written.

    Gives up the caller's `shared` lock. Moves only the very inode that was found invalid, never a
    replacement that somebody built meanwhile. Returns what was done.
    """
    done: dict[str, object] = {}
    try:
        fd = filesystem.open_directory(paths.artifact(key))
    except OSError as error:
        shared.close()
        return {"invalidation_marker_error": filesystem.error_details(error)}
    try:
        try:
            invalidate(fd)
            done["invalidation_marker"] = "durable"
        except OSError as error:
            done["invalidation_marker_error"] = filesystem.error_details(error)
        shared.close()
        try:
            with FileLock.acquire(paths.artifact_lock(key), exclusive=True, deadline=deadline):
                done["quarantine"] = _quarantine_inode(paths, key, os.fstat(fd))
        except WeightLeaseError:
            done["quarantine"] = "deferred_for_active_lease"
        except OSError as error:
            done["quarantine"] = "failed"
            done["quarantine_error"] = filesystem.error_details(error)
        return done
    finally:
        os.close(fd)


def _quarantine_inode(paths: Paths, key: str, invalid: os.stat_result) -> str:
    try:
        current = os.lstat(paths.artifact(key))
    except FileNotFoundError:
        return "already_absent"
    if not os.path.samestat(current, invalid):
        return "already_replaced"
    quarantine(paths, key, QuarantineReason.VALIDATION_FAILURE)
    return "completed"
