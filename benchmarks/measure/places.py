"""Where artifacts lie while they are measured: a tmpfs as the chart mounts it, or a folder."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# The chart's own: `memory.hugePages` in its values.
_OPTIONS = "size=8g,mode=0755,huge=within_size"
_CLAIM_BYTES = 4 * 2**20
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a mount, not a file


@dataclass(frozen=True)
class Folder:
    """An empty folder and what kind of storage it is on."""

    path: Path
    kind: str


@contextmanager
def memory_folder(given: str) -> Iterator[Folder]:
    """A folder of our own: below `given`, else on a tmpfs mounted for it, else on shared memory.

    Mounting needs root; without it pages are small, and publishing into them costs the kernel more.
    """
    if given or os.geteuid():
        with folder_below(given or _SHARED_MEMORY) as found:
            yield found
        return
    with tempfile.TemporaryDirectory(prefix="weightlease-") as name:
        subprocess.run(["mount", "-t", "tmpfs", "-o", _OPTIONS, "tmpfs", name], check=True)
        try:
            yield Folder(Path(name), f"tmpfs {_OPTIONS}")
        finally:
            # Lazy: a process that was killed may be on its way out.
            subprocess.run(["umount", "--lazy", name], check=True)


@contextmanager
def folder_below(parent: str) -> Iterator[Folder]:
    """A folder of our own below `parent`."""
    with tempfile.TemporaryDirectory(prefix="weightlease-", dir=parent) as name:
        yield Folder(Path(name), _kind(name))


def claim_memory(folder: Path, size: int) -> None:
    """Use `size` bytes of a tmpfs once, and free them.

    A virtual machine hands memory that was free for seconds back to its host; whoever needs it next
    pays for getting it again, up to two seconds a gigabyte. Called right before anything is timed
    there, so that nothing is.
    """
    block = bytes(_CLAIM_BYTES)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(0, size, _CLAIM_BYTES):
            file.write(block)


def _kind(path: str) -> str:
    command = ["findmnt", "--noheadings", "--output", "FSTYPE", "--target", path]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()
