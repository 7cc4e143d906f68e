"""Faults that a test asks the server to commit, each a number of times."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import StrEnum


class FaultKind(StrEnum):
    """What goes wrong."""

    STATUS = "status"  # answer with `status` and `headers` and no body
    TRUNCATE = "truncate"  # announce the whole size, send half, close
    FLIP = "flip"  # right size, one byte in the middle differs
    STALL = "stall"  # send half, then nothing until the server stops
    MOVED = "moved"  # answer with the header of another commit
    LINK = "link"  # page on to `headers["Link"]`, whatever it is
    COMPRESS = "compress"  # answer with gzip, whatever the client accepts
    LISTING = "listing"  # list `entries` instead of the tree


@dataclass(frozen=True)
class Fault:
    """One fault, for `times` requests whose path contains `path` and whose method is `method`."""

    kind: FaultKind
    path: str = ""
    method: str = ""
    times: int = 1
    status: int = 503
    headers: dict[str, str] = field(default_factory=dict)
    entries: tuple[object, ...] = ()


class Faults:
    """The faults still to come; safe to use from handler threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: list[tuple[Fault, int]] = []

    def add(self, fault: Fault) -> None:
        """Commit `fault` from the next matching request on."""
        with self._lock:
            self._left.append((fault, fault.times))

    def clear(self) -> None:
        """Forget what has not happened yet."""
        with self._lock:
            self._left.clear()

    def take(self, method: str, path: str, kinds: frozenset[FaultKind]) -> Fault | None:
        """The next fault of one of `kinds` for this request, counted down."""
        with self._lock:
            for position, (fault, left) in enumerate(self._left):
                matches = fault.path in path and fault.method in {"", method}
                if left and matches and fault.kind in kinds:
                    self._left[position] = (fault, left - 1)
                    return fault
        return None
