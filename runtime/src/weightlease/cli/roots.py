"""Opening a store root: with its own policy, as its own user, beside a running agent.

A root that a live agent leads may be read, and is changed through the agent's socket alone. Root
acts as the user that owns the store: lock files of another owner would shut that user out.
"""

from __future__ import annotations

import ctypes
import fcntl
import glob
import os
from typing import TypeVar

import msgspec

from weightlease import filesystem
from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.names import StorageClass
from weightlease.policy import BuildAdmission, CapacityPolicy, DomainPolicy
from weightlease.store.domain import DomainRecord, PolicyRecord
from weightlease.store.layout import DOMAIN_FILE, POLICY_FILE
from weightlease.store.local import LocalStore

# The node agent's, in the folder of domains of one storage class.
AGENT_LOCK = "agent.lock"
_MAX_FILE_BYTES = 64 * 1024
_PR_SET_DUMPABLE = 4

RecordT = TypeVar("RecordT", bound=msgspec.Struct)


def open_root(root: str, *, create: bool) -> LocalStore:
    """The store at `root`.

    Raises:
        WeightLeaseError: local_miss where there is none and `create` is false; permission_denied
            where it may not be looked at; else as LocalStore.

    """
    path = os.path.realpath(root)
    exists = _is_domain(path)
    if not exists and not create:
        raise WeightLeaseError.of(
            Stage.LOOKUP,
            FailureCode.LOCAL_MISS,
            f"there is no store at {root}; weightlease publish --root makes one",
        )
    if exists:
        _become_owner(path)
    return LocalStore(path, _policy(path))


def require_apart(root: str, source: str) -> None:
    """Refuse a root in the very folder that is to be published: its files would be assets.

    Raises:
        WeightLeaseError: invalid_config.

    """
    inner, outer = os.path.realpath(root), os.path.realpath(source)
    if os.path.commonpath((inner, outer)) == outer:
        raise WeightLeaseError.of(
            Stage.CONFIGURATION,
            FailureCode.INVALID_CONFIG,
            f"the store root {root} lies in the source {source}; choose a root outside of it",
        )


def require_no_agent(root: str, command: str) -> None:
    """Refuse to change a root that a live agent leads.

    Raises:
        WeightLeaseError: permission_denied, with the way through the agent.

    """
    lock = live_agent(root)
    if lock:
        raise WeightLeaseError.of(
            Stage.ACCESS,
            FailureCode.PERMISSION_DENIED,
            f"{root} belongs to a running node agent ({lock} is held); "
            f"use weightlease {command} --socket instead of --root",
        )


def live_agent(root: str) -> str:
    """The held lock of the agent that leads `root`, or an empty string."""
    path = os.path.realpath(root)
    parent = os.path.dirname(path)
    # <base>/<class>/<namespace>: the agent locks one class's folder for all of them.
    siblings = glob.glob(os.path.join(glob.escape(os.path.dirname(parent)), "*", AGENT_LOCK))
    candidates = [os.path.join(path, AGENT_LOCK), os.path.join(parent, AGENT_LOCK), *siblings]
    return next((lock for lock in candidates if _is_held(lock)), "")


def _is_held(lock: str) -> bool:
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _is_domain(path: str) -> bool:
    try:
        os.stat(os.path.join(path, DOMAIN_FILE))
    except PermissionError as error:
        raise WeightLeaseError.of(
            Stage.ACCESS,
            FailureCode.PERMISSION_DENIED,
            f"the store at {path} may not be looked at by uid {os.geteuid()}; "
            "be its owner or root, or ask its agent with --socket",
        ) from error
    except OSError:
        return False
    return True


def _policy(path: str) -> DomainPolicy:
    """The policy that `path` was made with, else one that fits its file system."""
    try:
        domain = _read(path, DOMAIN_FILE, DomainRecord)
        limits = _read(path, POLICY_FILE, PolicyRecord)
        return _recorded(domain, limits)
    except (OSError, WeightLeaseError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # New, or broken: the store itself says what is wrong with it.
        found = filesystem.storage_class_of(filesystem.filesystem_type(path))
        return DomainPolicy(storage_class=found)


def _recorded(domain: DomainRecord, limits: PolicyRecord) -> DomainPolicy:
    disk = domain.storage_class == "disk"
    capacity = CapacityPolicy(
        limits.max_artifact_bytes,
        limits.max_store_bytes,
        limits.min_free_bytes,
        _admission(limits),
    )
    return DomainPolicy(
        storage_class=StorageClass.DISK if disk else StorageClass.MEMORY,
        scope=domain.scope,
        domain_id=domain.domain_id,
        capacity=capacity,
    )


def _admission(limits: PolicyRecord) -> BuildAdmission:
    stated = limits.build_admission
    # an unknown one is refused by the store when it compares
    return BuildAdmission.SERIALIZED if stated == "serialized" else BuildAdmission.CONCURRENT


def _read(path: str, name: str, kind: type[RecordT]) -> RecordT:
    data = filesystem.read_bounded(os.path.join(path, name), _MAX_FILE_BYTES, trusted=False)
    return msgspec.json.decode(data, type=kind, strict=True)


def _become_owner(path: str) -> None:
    info = os.stat(path)
    if os.geteuid() != 0 or info.st_uid == 0:
        return
    os.setgroups([])
    os.setresgid(info.st_gid, info.st_gid, info.st_gid)
    os.setresuid(info.st_uid, info.st_uid, info.st_uid)
    # The kernel hides /proc/<pid>/fd of a process that changed its user, also from its children.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
