"""A donor or a consumer as a process of its own, to be killed: `weight_processes.py ROLE PLACE`.

Roles: `vmm` and `cuda-ipc` lend the small model, `attach` holds an attachment to it; each says a
line when it is there and waits for its standard input to close. Not forked: a forked child of a
process with torch's threads may wait for them for ever.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from donors import KEY, RunningDonor, Small
from fake_ipc import FakeIpc
from mortal import MORTAL
from weightlease.gpu import WeightCacheClient
from weightlease.gpu.fake import FakeDevice


@contextmanager
def running(role: str, place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The process, once it lends or holds; killed at the end if it still runs."""
    process = subprocess.Popen(
        [*MORTAL, sys.executable, __file__, role, str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


def main() -> None:
    role, place = sys.argv[1], Path(sys.argv[2])
    if role == "attach":
        held: object = WeightCacheClient(place, KEY, FakeDevice()).attach(Small)
    else:
        held = RunningDonor(place, transport=role, storage_transport=FakeIpc())
    print("ready", flush=True)
    sys.stdin.read()
    del held


if __name__ == "__main__":
    main()
