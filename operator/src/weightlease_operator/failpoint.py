"""A process that ends itself right before or after one of its writes, for tests of crashes.

    WEIGHTLEASE_OPERATOR_FAILPOINT=before:7    SIGKILL instead of the seventh write
    WEIGHTLEASE_OPERATOR_FAILPOINT=after:7     SIGKILL once the seventh write has been answered

Writes are counted from 1 as they begin; those to the election's Lease are not.
"""

from __future__ import annotations

import os
import signal


class Failpoint:
    """Counts writes; without a place it only counts."""

    def __init__(self, place: str = "") -> None:
        self._moment, _, number = place.partition(":")
        self._number = int(number or 0)
        self._begun = 0

    def begin(self) -> int:
        """A write begins; returns its number."""
        self._begun += 1
        self._reach("before", self._begun)
        return self._begun

    def end(self, number: int) -> None:
        """The server has answered that write."""
        self._reach("after", number)

    def _reach(self, moment: str, number: int) -> None:
        if (moment, number) == (self._moment, self._number):
            os.kill(os.getpid(), signal.SIGKILL)
