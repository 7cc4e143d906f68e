"""How much memory a tmpfs of ours may still take: the host's, within the agent's control group.

    host     MemAvailable of /proc/meminfo
    group    limit - (usage - inactive_file - active_file), of version 2 or 1; page cache goes first

Inside a container the kernel shows the container's own group at the mount's top. The pages of a
tmpfs belong to the group of the process that wrote them, which is the agent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

_V2 = ("memory.max", "memory.current", "inactive_file", "active_file")
_V1 = (
    "memory/memory.limit_in_bytes",
    "memory/memory.usage_in_bytes",
    "total_inactive_file",
    "total_active_file",
)


def available_memory(
    meminfo: Path = Path("/proc/meminfo"), groups: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Bytes; None where the kernel says nothing. Blocks."""
    known = [room for room in (_host(meminfo), _group(groups)) if room is not None]
    return max(min(known), 0) if known else None


def _host(meminfo: Path) -> int | None:
    kibibytes = _numbers(meminfo).get("MemAvailable:")
    return None if kibibytes is None else kibibytes * 1024


def _group(groups: Path) -> int | None:
    for limit_name, usage_name, *cached in (_V2, _V1):
        limit, usage = _number(groups / limit_name), _number(groups / usage_name)
        if limit is None or usage is None:
            continue
        statistics = _numbers((groups / usage_name).parent / "memory.stat")
        return limit - (usage - sum(statistics.get(name, 0) for name in cached))
    return None


def _number(path: Path) -> int | None:
    """The one number of a file; None for none, such as `max`."""
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def _numbers(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    return dict(_pairs(_lines(path)))


def _lines(path: Path) -> list[str]:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text().splitlines()
    return []


def _pairs(lines: Iterable[str]) -> Iterable[tuple[str, int]]:
    for line in lines:
        name, number, *_ = [*line.split(), "", ""]
        if number.isdecimal():
            yield name, int(number)
