"""Which descriptors this process has open, so that a leak names itself."""

from __future__ import annotations

import gc
import os
from contextlib import suppress


def open_descriptors() -> list[str]:
    """What each open descriptor refers to, sorted."""
    # A traceback may keep a view alive until its cycle is collected.
    gc.collect()
    found = []
    for name in os.listdir("/proc/self/fd"):
        # The listing's own descriptor is gone by now.
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return sorted(found)
