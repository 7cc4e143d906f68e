"""Which descriptors this process has open, so that a leak names itself."""

from __future__ import annotations

import os
from contextlib import suppress


def open_descriptors() -> list[str]:
    """What each open descriptor refers to, sorted."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        # The listing's own descriptor is gone by now.
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return sorted(found)
