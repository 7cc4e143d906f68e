"""One domain: a store root whose first creator fixed what it is.

    domain.json         {"schema_version": 1, "domain_uuid", "scope": "node", "domain_id",
                         "backend": "local_filesystem", "storage_class": "disk" | "tmpfs",
                         "filesystem_type"}
    domain-policy.json  {"schema_version": 1, "policy_version", "max_artifact_bytes",
                         "max_store_bytes", "min_free_bytes", "eviction": "none"}
                        with serialized admission "schema_version": 2 and
                        "build_admission": "serialized" besides

Both are the Host Weight Runtime's v1 files with exact key sets. A file system that is refused is
refused before the root is made.
"""

from __future__ import annotations

import os
import stat
import uuid
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import msgspec

from weightlease import filesystem
from weightlease.canonical import canonical_json
from weightlease.errors import FailureCode, ManifestError, Stage, WeightLeaseError
from weightlease.locks import Deadline, FileLock
from weightlease.names import StorageClass
from weightlease.policy import BuildAdmission, DomainPolicy
from weightlease.store.layout import DOMAIN_FILE, POLICY_FILE, Paths

_STORED_CLASS = {StorageClass.DISK: "disk", StorageClass.MEMORY: "tmpfs"}
_MAX_FILE_BYTES = 64 * 1024

RecordT = TypeVar("RecordT", bound=msgspec.Struct)


class DomainRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What domain.json holds."""

    schema_version: int
    domain_uuid: str
    scope: str
    domain_id: str
    backend: str
    storage_class: str
    filesystem_type: str


class PolicyRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What domain-policy.json holds; limits in bytes, null for none."""

    schema_version: int
    policy_version: int
    max_artifact_bytes: int | None
    max_store_bytes: int | None
    min_free_bytes: int
    eviction: str
    build_admission: str | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True)
class Domain:
    """An initialised domain."""

    paths: Paths
    policy: DomainPolicy
    record: DomainRecord
    policy_version: int

    @property
    def uuid(self) -> str:
        """The domain's name for ever."""
        return self.record.domain_uuid

    @property
    def trusted(self) -> bool:
        """Whether ownership and write bits are checked."""
        return self.policy.require_trusted_permissions


def open_domain(root: str | os.PathLike[str], policy: DomainPolicy, deadline: Deadline) -> Domain:
    """Open the domain at `root`, making it if there is none.

    Raises:
        WeightLeaseError: domain_policy_mismatch, storage_class_mismatch, domain_unavailable, or
            active_build_timeout when another initialiser holds on past `deadline`.

    """
    paths = Paths(os.path.realpath(os.path.expanduser(root)))
    try:
        kind = filesystem.filesystem_type(paths.root)
        _require_storage_class(policy, kind)
        _make_directories(paths)
        if policy.require_trusted_permissions:
            for directory in paths.directories:
                _require_ours(directory)
        with FileLock.acquire(
            paths.init_lock, exclusive=True, deadline=deadline, stage=Stage.DOMAIN
        ):
            record = _agree_on_domain(paths, policy, kind)
            version = _agree_on_policy(paths, policy)
    except OSError as error:
        failure = filesystem.storage_failure(error, f"cannot open the domain at {paths.root}")
        raise WeightLeaseError(failure) from error
    except WeightLeaseError as error:
        if error.failure.code is FailureCode.ACTIVE_BUILD_TIMEOUT:
            raise WeightLeaseError.of(
                Stage.DOMAIN,
                FailureCode.DOMAIN_UNAVAILABLE,
                f"another process has been initialising {paths.root} for too long",
                retryable=True,
            ) from error
        raise
    return Domain(paths, policy, record, version)


def _require_storage_class(policy: DomainPolicy, kind: str) -> None:
    found = filesystem.storage_class_of(kind)
    if found is not policy.storage_class:
        raise WeightLeaseError.of(
            Stage.DOMAIN,
            FailureCode.STORAGE_CLASS_MISMATCH,
            f"storage class {policy.storage_class} was asked for, but file system {kind!r} is "
            f"{found}; choose that class or another root",
        )


def _make_directories(paths: Paths) -> None:
    os.makedirs(os.path.dirname(paths.root), exist_ok=True)
    for directory in paths.directories:
        try:
            os.mkdir(directory, filesystem.PRIVATE_DIRECTORY)
        except FileExistsError:
            continue


def _require_ours(directory: str) -> None:
    info = os.lstat(directory)
    if not stat.S_ISDIR(info.st_mode):
        _refuse_directory(directory, "is not a real directory")
    if info.st_uid != os.geteuid():
        _refuse_directory(directory, f"belongs to uid {info.st_uid}, not to {os.geteuid()}")
    if info.st_mode & 0o022:
        mode = stat.S_IMODE(info.st_mode)
        _refuse_directory(directory, f"has mode {mode:#o}; it must not be writable by others")


def _refuse_directory(directory: str, problem: str) -> NoReturn:
    raise WeightLeaseError.of(
        Stage.DOMAIN, FailureCode.DOMAIN_UNAVAILABLE, f"store directory {directory} {problem}"
    )


def _agree_on_domain(paths: Paths, policy: DomainPolicy, kind: str) -> DomainRecord:
    wanted = DomainRecord(
        schema_version=1,
        domain_uuid=uuid.uuid4().hex,
        scope=policy.scope,
        domain_id=policy.domain_id,
        backend="local_filesystem",
        storage_class=_STORED_CLASS[policy.storage_class],
        filesystem_type=kind,
    )
    found = _read_or_write(paths, DOMAIN_FILE, wanted)
    if not found.domain_uuid:
        _mismatch(DOMAIN_FILE, "domain_uuid is empty")
    _require_equal(DOMAIN_FILE, wanted, found, except_for="domain_uuid")
    return found


def _agree_on_policy(paths: Paths, policy: DomainPolicy) -> int:
    capacity = policy.capacity
    serialized = capacity.build_admission is BuildAdmission.SERIALIZED
    wanted = PolicyRecord(
        # a concurrent domain keeps the first version's bytes, which every HWR opens
        schema_version=2 if serialized else 1,
        policy_version=1,
        max_artifact_bytes=capacity.max_artifact_bytes,
        max_store_bytes=capacity.max_store_bytes,
        min_free_bytes=capacity.min_free_bytes,
        eviction="none",
        build_admission=str(capacity.build_admission) if serialized else msgspec.UNSET,
    )
    found = _read_or_write(paths, POLICY_FILE, wanted)
    if found.policy_version < 1:
        _mismatch(POLICY_FILE, f"policy_version {found.policy_version} must be at least 1")
    _require_equal(POLICY_FILE, wanted, found, except_for="policy_version")
    return found.policy_version


def _read_or_write(paths: Paths, name: str, wanted: RecordT) -> RecordT:
    path = f"{paths.root}/{name}"
    if not filesystem.exists(path):
        filesystem.replace_file(path, canonical_json(msgspec.to_builtins(wanted)))
        return wanted
    try:
        data = filesystem.read_bounded(path, _MAX_FILE_BYTES, trusted=False)
        return msgspec.json.decode(data, type=type(wanted), strict=True)
    except (ManifestError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _mismatch(name, str(error))


def _require_equal(name: str, wanted: Any, found: Any, *, except_for: str) -> None:
    for field in wanted.__struct_fields__:
        here, there = getattr(wanted, field), getattr(found, field)
        if field != except_for and here != there:
            _mismatch(name, f"{field} is {there!r} on disk, but {here!r} was asked for")


def _mismatch(name: str, problem: str) -> NoReturn:
    raise WeightLeaseError.of(
        Stage.CONFIGURATION,
        FailureCode.DOMAIN_POLICY_MISMATCH,
        f"{name}: {problem}; the domain's first creator decides, use its settings or another root",
    )
