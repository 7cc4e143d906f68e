"""What a producer shows while it works: JSON lines, and a bar where somebody looks at a terminal.

{"time": "2026-01-31T12:00:00Z", "event": "progress", "phase": "publish",
 "doneBytes": 5, "totalBytes": 10, "bytesPerSecond": 5}
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

from tqdm import tqdm

from weightlease.source.model import Phase

INTERVAL_SECONDS = 5.0
SMALL_DOWNLOAD = 1024 * 1024


class Reporter:
    """Writes events to `stream`; `progress` is a `source.model.Progress`."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._bar: tqdm[Any] | None = None
        self._phase: tuple[Phase, int] | None = None
        self._done = 0
        self._began = self._told = clock()

    def event(self, event: str, **fields: object) -> None:
        """One line."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        line = json.dumps({"time": now, "event": event, **fields})
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def progress(self, phase: Phase, done: int, total: int) -> None:
        """`done` more bytes of `total`; at most one line per interval, and one at the end."""
        if (phase, total) != self._phase:
            self._start(phase, total)
        self._done += done
        now = self._clock()
        if self._bar is not None:
            self._bar.update(done)
        elif now - self._told >= INTERVAL_SECONDS or self._at_the_end_of_much():
            self._told = now
            rate = self._done / max(now - self._began, 0.001)
            self.event(
                "progress",
                phase=str(phase),
                doneBytes=self._done,
                totalBytes=total,
                bytesPerSecond=int(rate),
            )

    def close(self) -> None:
        """End the bar, if there is one."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _at_the_end_of_much(self) -> bool:
        # A checkpoint has dozens of small files; each is a download of its own.
        phase, total = self._phase or (Phase.PUBLISH, 0)
        return self._done >= total and (phase is not Phase.DOWNLOAD or total >= SMALL_DOWNLOAD)

    def _start(self, phase: Phase, total: int) -> None:
        self.close()
        self._phase = (phase, total)
        self._done = 0
        self._began = self._told = self._clock()
        if self._stream.isatty():
            self._bar = tqdm(
                total=total, desc=str(phase), unit="B", unit_scale=True, file=self._stream
            )
