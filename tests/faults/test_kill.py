"""A process killed at any point of a publication or cleanup leaves a whole artifact or none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import store_child
from faults import KEY, publish, reader_sees
from system_calls import KILLED, MUTATING, kill_at, mutations, record, run
from weightlease.reports import CleanupStatus, StoreStatus
from weightlease.store.failpoints import ENVIRONMENT, Point
from weightlease.store.local import LocalStore

UNSEEN = {StoreStatus.MISS, StoreStatus.INVALID}
NewRoot = Callable[[], Path]


def require_recovery(root: Path) -> None:
    """Readers see a whole artifact or none, and the next builder gets one and leaves no trace."""
    assert reader_sees(root) in {*UNSEEN, StoreStatus.HIT}
    assert publish(root) in {StoreStatus.BUILT, StoreStatus.HIT}
    assert reader_sees(root) is StoreStatus.HIT
    store = LocalStore(root)
    assert store.cleanup(KEY).status is CleanupStatus.REMOVED
    assert store.leftovers() == ()
    left = [path for path in root.rglob("*") if KEY in path.name]
    assert {path.parent.name for path in left} <= {"locks", "quarantine"}


def test_a_publication_killed_at_any_mutating_system_call(
    new_root: NewRoot, tmp_path: Path
) -> None:
    root = new_root()
    calls = mutations(record(lambda: print(publish(root)), tmp_path), root)
    assert {"openat", "mkdir", "rename", "chmod", "fchmod", "write", "fsync"} <= {
        call.name for call in calls
    }
    seen = []
    for call in calls:
        root = new_root()
        killed = run(lambda root=root: print(publish(root)), tmp_path, *kill_at(call))  # type: ignore[misc]
        assert killed.status == KILLED, call
        seen.append(reader_sees(root))
        require_recovery(root)
    assert seen[0] is StoreStatus.MISS
    assert seen[-1] is StoreStatus.HIT


def test_a_cleanup_killed_at_any_mutating_system_call(new_root: NewRoot, tmp_path: Path) -> None:
    root = new_root()
    publish(root)
    calls = mutations(record(lambda: clean(root), tmp_path), root)
    assert {"rename", "unlink", "rmdir", "fchmod", "fsync"} <= {call.name for call in calls}
    for call in calls:
        root = new_root()
        publish(root)
        killed = run(lambda root=root: clean(root), tmp_path, *kill_at(call))  # type: ignore[misc]
        assert killed.status == KILLED, call
        require_recovery(root)


def clean(root: Path) -> None:
    assert LocalStore(root).cleanup(KEY).status is CleanupStatus.REMOVED


def test_the_recorded_calls_are_all_the_kinds_that_change_a_file_system(
    new_root: NewRoot, tmp_path: Path
) -> None:
    root = new_root()
    others = run(lambda: print(publish(root)), tmp_path, "-e", "trace=%file,%desc")
    changing = {call.name for call in others.calls} & {
        *("creat", "open", "openat2", "mkdirat", "renameat", "renameat2", "linkat", "symlink"),
        *("symlinkat", "unlinkat", "fchmodat", "fchmodat2", "chown", "fchown", "lchown"),
        *("fchownat", "writev", "pwritev", "pwritev2", "truncate", "fallocate", "sendfile"),
        *("copy_file_range", "splice", "mknod", "mknodat", "utimensat", "setxattr", "fsetxattr"),
    }
    assert changing == set(), f"add them to {MUTATING}"


# ---- named failpoints, in processes of their own ----

IN_CLEANUP = {Point.BEFORE_TOMBSTONE, Point.AFTER_TOMBSTONE, Point.BEFORE_DENY_REMOVAL}


@pytest.mark.parametrize("point", sorted(set(Point) - IN_CLEANUP))
def test_a_publication_killed_at_a_failpoint(new_root: NewRoot, point: Point) -> None:
    root = new_root()
    terms = f"{point}=kill"
    if point is Point.BEFORE_CONTAINMENT:
        terms += f",{Point.BEFORE_COMMIT}=error"
    assert child_with_failpoints(root, terms) == KILLED
    assert reader_sees(root) in {
        Point.AFTER_RENAME: {StoreStatus.INVALID},
        Point.BEFORE_COMMIT: {StoreStatus.HIT},
        Point.BEFORE_CONTAINMENT: {StoreStatus.HIT},
        Point.AFTER_COMMIT: {StoreStatus.HIT},
    }.get(point, {StoreStatus.MISS})
    require_recovery(root)


@pytest.mark.parametrize("point", sorted(IN_CLEANUP))
def test_a_cleanup_killed_at_a_failpoint(new_root: NewRoot, point: Point) -> None:
    root = new_root()
    publish(root)
    assert child_with_failpoints(root, f"{point}=kill", "cleanup") == KILLED
    require_recovery(root)


def child_with_failpoints(root: Path, terms: str, operation: str = "race") -> int:
    maker = ["weightlease.store.local:LocalStore", str(root)]
    done = subprocess.run(
        [sys.executable, store_child.__file__, *maker, operation, "0"],
        env=os.environ | {ENVIRONMENT: terms, "PYTHONPATH": os.path.dirname(store_child.__file__)},
        check=False,
        capture_output=True,
    )
    return done.returncode
