"""A real CSI driver in a process of its own, and the mount namespace that a node would be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

from agent_process import wait_until
from mortal import MORTAL

_STOP_SECONDS = 30.0


class NodeMounts:
    """A mount namespace that outlives drivers; what is mounted there is seen through `see`."""

    def __enter__(self) -> Self:
        command = ["unshare", "--mount", "--propagation", "private", "sleep", "infinity"]
        self._process = subprocess.Popen([*MORTAL, *command])
        ours = os.readlink("/proc/self/ns/mnt")
        wait_until(lambda: os.readlink(f"/proc/{self._process.pid}/ns/mnt") != ours)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(_STOP_SECONDS)

    @property
    def enter(self) -> list[str]:
        """In front of a command that is to run there."""
        return ["nsenter", f"--target={self._process.pid}", "--mount", "--"]

    def see(self, path: str) -> Path:
        """A path as it looks there."""
        return Path(f"/proc/{self._process.pid}/root{path}")


class DriverProcess:
    """Starts on entering, is killed on leaving; `start` again for its successor."""

    def __init__(self, node: NodeMounts, *, kubelet: Path, volumes: Path, store: Path) -> None:
        self._command = [
            *(*MORTAL, *node.enter, sys.executable, "-m", "weightlease_csi_driver"),
            f"--kubelet={kubelet}",
            f"--volumes={volumes}",
            f"--store={store}",
            "--node-name=node-1",
            "--caretaker-seconds=0.2",
        ]
        self.logs: list[dict[str, Any]] = []
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def start(self) -> Self:
        seen = len(self.logs)
        self._process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        wait_until(lambda: self.has_logged("serving", since=seen), 30)
        return self

    def has_logged(self, event: str, since: int = 0) -> bool:
        return any(line.get("event") == event for line in self.logs[since:])

    def kill(self) -> None:
        """As the kernel would."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Gracefully; the exit status."""
        return self._end(signal.SIGTERM)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()

    def _end(self, number: int) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        status = self._process.wait(_STOP_SECONDS)
        if self._reader is not None:
            self._reader.join(_STOP_SECONDS)
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._process = None
        return status

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        for line in self._process.stderr:
            try:
                self.logs.append(json.loads(line))
            except ValueError:
                self.logs.append({"event": line.rstrip()})
