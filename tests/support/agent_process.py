"""A real node agent in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from forked_agent import ForkedAgent, Rights
from mortal import MORTAL
from raw_peer import RawPeer

START_SECONDS = 30.0
STOP_SECONDS = 30.0
# Deadlines that a test waits for, short enough to wait for.
QUICK = {
    "WEIGHTLEASE_LIMITS__HELLO_SECONDS": "1",
    "WEIGHTLEASE_LIMITS__FRAME_SECONDS": "1",
    "WEIGHTLEASE_LIMITS__SEND_SECONDS": "1",
    "WEIGHTLEASE_LIMITS__BODY_SECONDS": "2",
    "WEIGHTLEASE_INTERVALS__LEASE_SWEEP": "0.5",
    "WEIGHTLEASE_INTERVALS__ARTIFACT_SWEEP": "0.5",
}


class AgentProcess:
    """Starts on entering, is killed on leaving; `start` again for its successor.

    `prefix` runs the agent inside another command, such as one with a mount namespace of its own;
    `rights` are for an agent without one.
    """

    def __init__(
        self,
        folder: Path,
        *,
        arguments: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
        uid_mode: bool = True,
        rights: Rights | None = None,
    ) -> None:
        self.root = folder / "store"
        self.socket = folder / "run" / "agent.sock"
        self._arguments = [*arguments, *(["--auth", "uid"] if uid_mode else [])]
        self._environment = environment or {}
        self._prefix = list(prefix)
        self._rights = rights
        self.logs: list[dict[str, Any]] = []
        self._process: subprocess.Popen[str] | ForkedAgent | None = None
        self._reader: threading.Thread | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def domain(self, namespace: str = "default") -> Path:
        return self.root / "disk" / namespace

    def start(self) -> Self:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("WEIGHTLEASE_")
        }
        started = len(self.logs)
        self._process = self._launch(environment | self._environment)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        wait_until(
            lambda: self.has_logged("serving http", since=started) or self._ended(),
            START_SECONDS,
        )
        assert not self._ended(), self.logs
        return self

    def peer(self, **arguments: Any) -> RawPeer:
        return RawPeer(self.socket, **arguments)

    def kill(self) -> None:
        """As the kernel would: no chance to tidy up."""
        self._signal(signal.SIGKILL)

    def stop(self) -> int:
        """Gracefully; the exit status."""
        return self._signal(signal.SIGTERM)

    def terminate(self) -> None:
        """Ask for a graceful stop without waiting for it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        assert self._process is not None
        status = self._process.wait(STOP_SECONDS)
        if self._reader is not None:
            self._reader.join(STOP_SECONDS)
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._process = None
        return status

    def has_logged(self, event: str, since: int = 0) -> bool:
        return any(line.get("event") == event for line in self.logs[since:])

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a page."""
        ports = [line["port"] for line in self.logs if line.get("event") == "serving http"]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{ports[-1]}{path}", timeout=10) as page:
                return page.status, page.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metric(self, name: str, **labels: str) -> float:
        """The value of one sample; 0 where there is none."""
        wanted = set(labels.items())
        for line in self.get("/metrics")[1].splitlines():
            match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if match and match[1] == name:
                found = set(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
                if wanted <= found:
                    return float(match[3])
        return 0.0

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        if self._process is not None:
            self.kill()

    def _launch(self, environment: dict[str, str]) -> subprocess.Popen[str] | ForkedAgent:
        places = ("--root", str(self.root), "--socket", str(self.socket), "--http-port", "0")
        arguments = [*places, *self._arguments]
        if not self._prefix:
            return ForkedAgent(arguments, environment, self._rights)
        return subprocess.Popen(
            [
                *MORTAL,
                *self._prefix,
                *(sys.executable, "-m", "weightlease_node_agent"),
                *arguments,
            ],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _signal(self, number: int) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self.wait()

    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        for line in self._process.stderr:
            try:
                self.logs.append(json.loads(line))
            except ValueError:
                self.logs.append({"event": line.rstrip()})


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Poll until `condition` holds; fails the test when it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.02)
