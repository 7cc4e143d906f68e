"""The command line: in this process, which is quick, or in one of its own, as users run it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from mortal import MORTAL
from weightlease.cli import main


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    error: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def command(arguments: Sequence[object]) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "weightlease.cli", *map(str, arguments)]


def weightlease(*arguments: object) -> Done:
    """Run one command in this process."""
    out, error = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(error):
        try:
            code = main([str(one) for one in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Done(code, out.getvalue(), error.getvalue())


def spawned(*arguments: object, **environment: str) -> Done:
    """Run one command in a process of its own, to its end."""
    done = subprocess.run(
        command(arguments),
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=os.environ | environment,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def started(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    """Start one command in a process of its own; its output is piped."""
    return subprocess.Popen(
        [*MORTAL, *command(arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
