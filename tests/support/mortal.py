"""Processes that die with the test run, also when it is killed and cleans nothing up.

Only for a process that the run's main thread starts: the kernel sends the signal when the thread
ends that started it.
"""

from __future__ import annotations

import ctypes
import signal

# coreutils and util-linux; in front of a command. A shell starts what it puts into the background
# with SIGINT ignored, and every process below inherits that: a tested one must hear it.
MORTAL = ("env", "--default-signal=INT", "setpriv", "--pdeathsig", "KILL", "--")
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """The same for a forked process, which calls it first."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
