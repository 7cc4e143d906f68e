"""As root with default capabilities, try every way to change an artifact through its lease.

Prints {"<way>": "<errno name>" or "WROTE"} and keeps the lease until stopped.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import sys
import time
from collections.abc import Callable

import weightlease


def attempts(path: str) -> dict[str, Callable[[], object]]:
    """Each way to change the file that `path`, a link of /proc, leads to."""
    read_only = os.open(path, os.O_RDONLY)

    def write_reopened() -> None:
        descriptor = os.open(f"/proc/self/fd/{read_only}", os.O_RDWR)
        os.pwrite(descriptor, b"\xff", 4096)

    def map_writable() -> None:
        mmap.mmap(read_only, 1, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)

    def open_by_handle_of_proc() -> None:
        os.open(os.readlink(f"/proc/self/fd/{read_only}"), os.O_RDWR)

    return {
        "pwrite": lambda: os.pwrite(read_only, b"\xff", 4096),
        "reopen": write_reopened,
        "truncate": lambda: os.truncate(path, 0),
        "ftruncate": lambda: os.ftruncate(read_only, 0),
        "fchmod": lambda: os.fchmod(read_only, 0o600),
        "chmod": lambda: os.chmod(path, 0o600),
        "fchown": lambda: os.fchown(read_only, 0, 0),
        "setxattr": lambda: os.setxattr(path, "user.weights", b"x"),
        "utime": lambda: os.utime(path, (0, 0)),
        "map": map_writable,
        "path": open_by_handle_of_proc,
        "link": lambda: os.link(path, "/tmp/stolen", follow_symlinks=True),
    }


def main() -> None:
    outcome: dict[str, str] = {}
    with weightlease.connect() as store, store.acquire(sys.argv[1]) as lease:
        paths = lease.files()
        for name in ("model.safetensors", "config.json"):
            for way, attempt in attempts(paths[name]).items():
                try:
                    attempt()
                    outcome[f"{way} {name}"] = "WROTE"
                except OSError as error:
                    outcome[f"{way} {name}"] = errno.errorcode.get(error.errno or 0, str(error))
        print(json.dumps(outcome), flush=True)
        time.sleep(600)


main()
