"""Runs programs with a deadline; output is captured, or shown as it comes."""

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from devcluster.errors import CommandFailed, DeadlineExceeded, MissingPrerequisite

_TAIL_LINES = 30


def run(
    argv: Sequence[str | Path],
    *,
    deadline: float = 60.0,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
) -> str:
    """Standard output of ``argv``; ``deadline`` in seconds, ``env`` added to the environment.

    Raises CommandFailed with the end of both streams, DeadlineExceeded, MissingPrerequisite.
    """
    program = shlex.join(str(part) for part in argv)
    try:
        done = subprocess.run(
            [str(part) for part in argv],
            cwd=cwd,
            env={**os.environ, **(env or {})},
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline,
            check=False,
        )
    except FileNotFoundError as error:
        raise MissingPrerequisite(f"{argv[0]} was not found: run the doctor command") from error
    except subprocess.TimeoutExpired as error:
        raise DeadlineExceeded(f"{program} did not end within {deadline:.0f} s") from error
    if done.returncode != 0:
        raise CommandFailed(program, done.returncode, tail(done.stdout + done.stderr))
    return done.stdout


def succeeds(argv: Sequence[str | Path], *, deadline: float = 60.0) -> bool:
    """Whether ``argv`` runs and ends with status 0."""
    try:
        run(argv, deadline=deadline)
    except (CommandFailed, DeadlineExceeded, MissingPrerequisite):
        return False
    return True


def tail(text: str, lines: int = _TAIL_LINES) -> str:
    """The last ``lines`` lines."""
    return "\n".join(text.splitlines()[-lines:])


def tail_of(path: Path, lines: int = _TAIL_LINES) -> str:
    """The last ``lines`` lines of a log of any size; reads at most 64 KiB of it."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 65536))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return "(no log)"
    return tail(text, lines)
