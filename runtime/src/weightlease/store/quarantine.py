"""Quarantine as evidence: what lies there, why and since when, and when it may go.

An entry is never leased, so nobody is asked; a builder of its key that is at work is left alone.
Age counts from the move, which changes the directory's status: its ctime, which no user can set.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from weightlease import filesystem
from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.reports import CleanupResult, QuarantinedArtifact
from weightlease.store.cleanup import cleanup_quarantined, quarantine_name
from weightlease.store.domain import Domain


@dataclass(frozen=True)
class ExpiredEntry:
    """One entry that was old enough, and what became of it."""

    entry: QuarantinedArtifact
    result: CleanupResult


def listed(domain: Domain, now: float) -> tuple[QuarantinedArtifact, ...]:
    """Every entry, oldest first; what a cleanup or a builder takes away meanwhile is left out.

    Raises:
        OSError: the directory cannot be read.

    """
    found = []
    for name in os.listdir(domain.paths.quarantine):
        parsed = quarantine_name(name)
        if parsed is None:
            continue
        path = f"{domain.paths.quarantine}/{name}"
        try:
            moved = os.lstat(path).st_ctime
        except FileNotFoundError:
            continue
        size = filesystem.tree_bytes(path)
        # a clock that was set back makes nothing older than it is
        found.append(QuarantinedArtifact(name, *parsed, size, max(0.0, now - moved)))
    return tuple(sorted(found, key=lambda entry: (-entry.age_seconds, entry.storage_name)))


def expire(domain: Domain, older_than_seconds: float, now: float) -> tuple[ExpiredEntry, ...]:
    """Remove every entry of at least `older_than_seconds`.

    Raises:
        WeightLeaseError: invalid_config; the age is negative or not a number.
        OSError: the directory cannot be read.

    """
    if not older_than_seconds >= 0:
        raise WeightLeaseError.of(
            Stage.CONFIGURATION,
            FailureCode.INVALID_CONFIG,
            f"older_than_seconds {older_than_seconds} must not be negative",
        )
    return tuple(
        ExpiredEntry(entry, cleanup_quarantined(domain, entry.storage_name))
        for entry in listed(domain, now)
        if entry.age_seconds >= older_than_seconds
    )
