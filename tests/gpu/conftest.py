"""Real processes on one real GPU; run by `make test-gpu`, never skipped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
PATH = [str(ROOT / "runtime" / "src"), str(ROOT / "tests" / "support")]


class Program:
    """One process that speaks JSON lines."""

    def __init__(
        self, name: str, *arguments: str, env: Mapping[str, str], before: tuple[str, ...] = ()
    ) -> None:
        path = os.pathsep.join([*PATH, os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [*before, sys.executable, str(PROGRAMS / f"{name}.py"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path} | dict(env),
        )

    def line(self) -> dict[str, Any]:
        """The next line it says."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, f"it said nothing and ended with {self.process.wait(60)}"
        found: dict[str, Any] = json.loads(text)
        return found

    def release(self) -> None:
        """Close its stdin, which it waits for."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def end(self) -> int:
        """Release and wait."""
        self.release()
        return self.process.wait(60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Program]]:
    """Starts programs; whatever still runs at the end is killed."""
    started: list[Program] = []

    def begin(
        name: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        before: tuple[str, ...] = (),
    ) -> Program:
        started.append(Program(name, *arguments, env=env or {}, before=before))
        return started[-1]

    yield begin
    for program in started:
        program.kill()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A socket path in a private directory."""
    folder = tmp_path / "weights"
    folder.mkdir(mode=0o700)
    return folder / "model.sock"
