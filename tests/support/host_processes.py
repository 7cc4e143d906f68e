"""The cluster's processes as the host sees them: found by command line and cgroup, killed hard."""

from __future__ import annotations

import os
import signal

from weightlease_demo.kubectl import until


def pids(command_part: str, cgroup_part: str) -> list[int]:
    """Processes whose command line and cgroup contain the given texts."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                command = file.read().replace(b"\0", b" ").decode(errors="replace")
            with open(f"/proc/{name}/cgroup", encoding="utf-8") as file:
                cgroup = file.read()
        except OSError:
            continue
        if command_part in command and cgroup_part in cgroup:
            found.append(int(name))
    return found


def kill_hard(command_part: str, cgroup_part: str) -> None:
    """SIGKILL the one matching process and wait until it is gone."""
    found = pids(command_part, cgroup_part)
    assert found, f"no process matches {command_part!r} in {cgroup_part!r}"
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    until("the killed process is gone", lambda: not set(found) & set(pids(command_part, "")))
