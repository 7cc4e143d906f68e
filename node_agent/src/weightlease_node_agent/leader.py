"""The node-local lock: of two agents that overlap during a surge, one sweeps and reports.

    <first root>/agent.lock      0644; flock held by the leading agent for as long as it lives

The command line looks at it too: a held lock means that a domain belongs to a live agent, and is
changed through its socket alone. The file is never removed, so that everybody locks one inode.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

LOCK_FILE = "agent.lock"


class Leadership:
    """Tries to become the leading agent of a root."""

    def __init__(self, root: Path) -> None:
        self._path = root / LOCK_FILE
        self._descriptor = -1

    @property
    def held(self) -> bool:
        """Whether this agent leads."""
        return self._descriptor >= 0

    def try_take(self) -> bool:
        """Lead, if nobody else does; keeps it until `release` or the process's end.

        Raises:
            OSError: the root can't be written.

        """
        if self.held:
            return True
        descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Let another agent lead."""
        if self.held:
            os.close(self._descriptor)
            self._descriptor = -1
