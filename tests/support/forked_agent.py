"""Agents forked from one process that has imported the agent, which takes a second otherwise.

test run ── starts once ──► forkserver: imports, no thread, no state
    └── asks ──────────────────► fork ──► an agent, in a process of its own
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection

from mortal import die_with_parent

_CONTEXT = multiprocessing.get_context("forkserver")
# The run's own program is imported by every child unless the forkserver has it.
_CONTEXT.set_forkserver_preload(
    ["__main__", "weightlease_node_agent.main", "weightlease_node_agent.gateway"]
)


class ForkedAgent:
    """What `subprocess.Popen` of the command would be; only what tests use of it."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        receiving, sending = _CONTEXT.Pipe(duplex=False)
        self._process = _CONTEXT.Process(
            target=_run, args=(list(arguments), dict(environment), sending), daemon=True
        )
        self._process.start()
        self.pid = self._process.pid or 0
        sending.close()
        self.stderr = os.fdopen(os.dup(receiving.fileno()), errors="replace")
        receiving.close()

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """The exit status; fails when the agent does not end."""
        self._process.join(timeout)
        status = self._process.exitcode
        assert status is not None, f"the agent {self.pid} did not end"
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _run(arguments: list[str], environment: dict[str, str], stderr: Connection) -> None:
    from weightlease_node_agent.main import main

    die_with_parent()
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(stderr.fileno(), sys.stderr.fileno())
    stderr.close()
    # As after an exec. The forkserver lives while anyone holds the pipe from the run.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    sys.exit(main(arguments))
