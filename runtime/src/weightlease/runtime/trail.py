"""The attempts of one resolution, timed from one to the next, in seconds."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from weightlease.errors import Failure, Stage
from weightlease.runtime.decisions import outcome_of
from weightlease.runtime.report import Action, Attempt, AttemptResult, ResolutionReport


class Trail:
    """Collects attempts and ends in exactly one report."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.key = ""
        self._clock = clock
        self._started = self._last = clock()
        self._attempts: list[Attempt] = []

    @property
    def elapsed_seconds(self) -> float:
        """Time since the resolution began."""
        return self._clock() - self._started

    def note(
        self, stage: Stage, result: AttemptResult, action: Action, failure: Failure | None = None
    ) -> None:
        """Add the attempt that ends now."""
        now = self._clock()
        self._attempts.append(Attempt(stage, result, action, now - self._last, failure))
        self._last = now

    def report(self) -> ResolutionReport:
        """The whole resolution."""
        attempts = tuple(self._attempts)
        return ResolutionReport(
            uuid.uuid4().hex, outcome_of(attempts), attempts, self.elapsed_seconds, self.key
        )
