"""Progress bars in bytes on standard error; silent where nobody watches."""

from __future__ import annotations

import sys
from typing import Any, Self

from tqdm import tqdm


class Bars:
    """One bar at a time: a new label or total begins a new one; a context manager."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None
        self._shown: tuple[str, int] | None = None

    def __call__(self, label: str, done: int, total: int) -> None:
        """`done` more bytes of `total`."""
        if self._shown != (label, total):
            self.close()
            self._shown = (label, total)
            self._bar = tqdm(
                total=total,
                desc=str(label),
                unit="B",
                unit_scale=True,
                file=sys.stderr,
                disable=not sys.stderr.isatty(),
            )
        if self._bar is not None:
            self._bar.update(done)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = self._shown = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
