"""A finished resolution: its report, and at most one lease that is handed over once."""

from __future__ import annotations

import threading
from typing import NoReturn, Self

from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.lease import WeightLease
from weightlease.runtime.report import ResolutionReport


class Resolution:
    """Owns the lease until it is taken; a context manager that closes what nobody took."""

    def __init__(self, report: ResolutionReport, lease: WeightLease | None = None) -> None:
        self.report = report
        self._lease = lease
        self._guard = threading.Lock()

    @property
    def leased(self) -> bool:
        """Whether a lease waits to be taken."""
        return self._lease is not None

    def take(self) -> WeightLease:
        """The lease, which is the caller's to close from now on; once.

        Raises:
            WeightLeaseError: there is none: the report says why, or it was taken before.

        """
        with self._guard:
            lease, self._lease = self._lease, None
        if lease is None:
            reason = self.report.failure or "it was taken before"
            raise WeightLeaseError.of(
                Stage.LIFECYCLE,
                FailureCode.UNSUPPORTED,
                f"the resolution ended {self.report.outcome} and has no lease to take: {reason}",
            )
        return lease

    def close(self) -> None:
        """Close the lease unless it was taken; idempotent."""
        with self._guard:
            lease, self._lease = self._lease, None
        if lease is not None:
            lease.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a resolution cannot be pickled: it may own a lease of this process")
