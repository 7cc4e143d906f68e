"""Admission by size: a check of limits and free space, not a reservation."""

from __future__ import annotations

import os

from weightlease import filesystem
from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.store.domain import Domain

_MIN_FREE_INODES = 64


def require_capacity(domain: Domain, additional_bytes: int) -> None:
    """Check that an artifact of `additional_bytes` may and can be added.

    Raises:
        WeightLeaseError: artifact_too_large, store_limit_exceeded or insufficient_capacity, each
            retryable, with needed and available bytes in the details.
        OSError: the file system cannot be asked.

    """
    policy = domain.policy.capacity
    require_artifact_size(domain, additional_bytes)
    if policy.max_store_bytes is not None:
        available = policy.max_store_bytes - filesystem.tree_bytes(domain.paths.root)
        if additional_bytes > available:
            raise _refused(FailureCode.STORE_LIMIT_EXCEEDED, additional_bytes, available)
    state = os.statvfs(domain.paths.root)
    available = state.f_bavail * state.f_frsize - policy.min_free_bytes
    if additional_bytes > available:
        raise _refused(FailureCode.INSUFFICIENT_CAPACITY, additional_bytes, available)
    # a file system without a fixed number of inodes reports none at all
    if state.f_files and state.f_favail < _MIN_FREE_INODES:
        raise WeightLeaseError.of(
            Stage.CAPACITY,
            FailureCode.INSUFFICIENT_CAPACITY,
            f"{state.f_favail} free inodes are fewer than {_MIN_FREE_INODES}",
            retryable=True,
        )


def require_artifact_size(domain: Domain, size: int) -> None:
    """Check that an artifact may have `size` bytes.

    Raises:
        WeightLeaseError: artifact_too_large.

    """
    limit = domain.policy.capacity.max_artifact_bytes
    if limit is not None and size > limit:
        raise _refused(FailureCode.ARTIFACT_TOO_LARGE, size, limit)


def _refused(code: FailureCode, needed: int, available: int) -> WeightLeaseError:
    return WeightLeaseError.of(
        Stage.CAPACITY,
        code,
        f"the artifact needs {needed} bytes, {max(available, 0)} are available",
        retryable=True,
        needed_bytes=needed,
        available_bytes=max(available, 0),
    )
