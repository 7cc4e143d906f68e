"""Keeping a lease while somebody uses it: until a signal, or as long as a command runs."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from weightlease.lease import WeightLease

ENV_DIRECTORY = "WEIGHTLEASE_DIR"
ENV_KEY = "WEIGHTLEASE_KEY"
_ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def ending_signals_held() -> Iterator[None]:
    """Within, a signal waits for `wait_for_ending_signal` instead of ending the process."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def wait_for_ending_signal() -> None:
    """Return when this process is asked to end."""
    signal.sigwait(_ENDING)


def run_with(lease: WeightLease, command: Sequence[str]) -> int:
    """Run `command` with the artifact's files in a folder; returns the exit code to end with.

    A terminal's SIGINT reaches the command by itself; a SIGTERM is passed on.

    Raises:
        OSError: the command cannot be started.

    """
    asked: list[int] = []
    running: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        for process in running:
            process.send_signal(number)

    before = signal.signal(signal.SIGTERM, pass_on), signal.signal(signal.SIGINT, _stay)
    try:
        with lease.directory() as directory:
            environment = os.environ | {ENV_DIRECTORY: directory, ENV_KEY: lease.key}
            with subprocess.Popen(command, env=environment) as process:
                running.append(process)
                if asked:
                    process.send_signal(asked[0])
                code = process.wait()
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])
    return code if code >= 0 else 128 - code


def _stay(_number: int, _frame: FrameType | None) -> None:
    """Outlive the command; a handler, because an ignored signal would stay ignored in it."""
