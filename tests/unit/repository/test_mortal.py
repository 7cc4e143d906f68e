"""A killed test run leaves no process behind."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import mortal

RUN = f"""
import os, subprocess, sys, time
sys.path.insert(0, {str(Path(mortal.__file__).parent)!r})
from mortal import MORTAL, die_with_parent
started = subprocess.Popen([*MORTAL, sys.executable, "-c", "print(flush=True); input()"],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)
started.stdout.readline()
reading, writing = os.pipe()
forked = os.fork()
if forked == 0:
    die_with_parent()
    os.write(writing, b"x")
    time.sleep(600)
os.read(reading, 1)
print(started.pid, forked, flush=True)
time.sleep(600)
"""
PATIENCE_MS = 20_000


def test_what_a_killed_run_started_dies_with_it() -> None:
    run = subprocess.Popen([sys.executable, "-c", RUN], stdout=subprocess.PIPE, text=True)
    with run:
        assert run.stdout is not None
        pidfds = [os.pidfd_open(int(pid)) for pid in run.stdout.readline().split()]
        run.kill()
    assert len(pidfds) == 2
    try:
        for pidfd in pidfds:
            ended = select.poll()
            ended.register(pidfd, select.POLLIN)
            assert ended.poll(PATIENCE_MS)
    finally:
        for pidfd in pidfds:
            os.close(pidfd)
