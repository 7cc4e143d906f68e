"""Health gates: poll until something holds, give up at a deadline, show the guilty log."""

import time
from collections.abc import Callable
from pathlib import Path

from devcluster import commands
from devcluster.errors import DeadlineExceeded, DevclusterError
from devcluster.processes import pid_of


def until(
    holds: Callable[[], bool],
    what: str,
    *,
    deadline: float,
    log: Path | None = None,
    pid_file: Path | None = None,
    interval: float = 0.1,
) -> None:
    """Returns once ``holds()``; ``deadline`` and ``interval`` in seconds.

    Raises DevclusterError as soon as the process of ``pid_file`` is gone, DeadlineExceeded when
    time is up; both with the end of ``log``.
    """
    end = time.monotonic() + deadline
    while not holds():
        if pid_file is not None and pid_of(pid_file) is None:
            raise DevclusterError(f"{pid_file.stem} ended before {what}{_shown(log)}")
        if time.monotonic() > end:
            raise DeadlineExceeded(f"{what}: not within {deadline:.0f} s{_shown(log)}")
        time.sleep(interval)


def _shown(log: Path | None) -> str:
    return "" if log is None else f"; the end of {log}:\n{commands.tail_of(log)}"
