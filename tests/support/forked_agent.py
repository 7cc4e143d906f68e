"""Agents forked from one process that has imported the agent, which takes a second otherwise.

test run ── starts once ──► forkserver: imports, no thread, no state
    └── asks ──────────────────► fork ──► an agent, in a process of its own
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

from mortal import die_with_parent

_CONTEXT = multiprocessing.get_context("forkserver")
# The run's own program is imported by every child unless the forkserver has it.
_CONTEXT.set_forkserver_preload(
    ["__main__", "weightlease_node_agent.main", "weightlease_node_agent.gateway"]
)


class Rights(NamedTuple):
    """As whom an agent runs, without capabilities, and how many descriptors it may have."""

    uid: int
    descriptors: int


class ForkedAgent:
    """What `subprocess.Popen` of the command would be; only what tests use of it."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], rights: Rights | None = None
    ) -> None:
        receiving, sending = _CONTEXT.Pipe(duplex=False)
        told = (list(arguments), dict(environment), sending, rights)
        self._process = _CONTEXT.Process(target=_run, args=told, daemon=True)
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


def _run(
    arguments: list[str], environment: dict[str, str], stderr: Connection, rights: Rights | None
) -> None:
    from weightlease_node_agent.main import main

    if rights is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (rights.descriptors, rights.descriptors))
        os.setgroups([])
        os.setgid(rights.uid)
        os.setuid(rights.uid)
    # After the change of uid, which takes it back.
    die_with_parent()
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(stderr.fileno(), sys.stderr.fileno())
    stderr.close()
    # As after an exec. The forkserver lives while anyone holds the pipe from the run.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    sys.exit(main(arguments))
