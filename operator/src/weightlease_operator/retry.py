"""When the next attempt is due: base, doubled by each failed attempt, up to a cap."""

from __future__ import annotations

from datetime import datetime, timedelta

from weightlease_operator.settings import PlanSettings


def backoff(attempt: int, settings: PlanSettings) -> timedelta:
    """How long to wait after attempt number `attempt`, counted from 0."""
    # 2**64 base waits pass every cap, and keep the float finite.
    seconds = settings.backoff_base_seconds * 2.0 ** min(attempt, 64)
    return timedelta(seconds=min(seconds, settings.backoff_cap_seconds))


def retry_at(finished_at: datetime, attempt: int, settings: PlanSettings) -> datetime:
    return finished_at + backoff(attempt, settings)
