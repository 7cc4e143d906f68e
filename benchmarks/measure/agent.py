"""A real node agent in a process of its own, for uids of this host, with one root."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from weightlease import AgentStore
from weightlease.errors import WeightLeaseError

_START_SECONDS = 60.0
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.05


class Agent:
    """Runs from entering to leaving; its root is of `storage_class` and its log beside it."""

    def __init__(self, folder: Path, storage_class: str) -> None:
        self.folder = folder
        self.storage_class = storage_class
        self.socket = str(folder / "agent.sock")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def peak_rss_mib(self) -> float:
        """The most memory that it had resident so far."""
        if self._process is None:
            raise RuntimeError("the agent does not run")
        return peak_rss_mib(self._process.pid)

    def __enter__(self) -> Self:
        roots = {"WEIGHTLEASE_DISK_ROOT": "", "WEIGHTLEASE_MEMORY_ROOT": ""}
        roots[f"WEIGHTLEASE_{self.storage_class.upper()}_ROOT"] = str(self.folder / "domains")
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("WEIGHTLEASE_")
        }
        command = [sys.executable, "-m", "weightlease_node_agent", "--auth", "uid"]
        with open(self.folder / "agent.log", "wb") as log:
            self._process = subprocess.Popen(
                [*command, "--socket", self.socket, "--http-port", "-1"],
                env=inherited | roots,
                stderr=log,
            )
        try:
            self._await()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self._end()

    def _await(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                with AgentStore(self.socket, "") as store:
                    store.hello()
                    return
            except WeightLeaseError as error:
                ended = self._process is None or self._process.poll() is not None
                if ended or time.monotonic() > deadline:
                    text = (self.folder / "agent.log").read_text(errors="replace")
                    raise RuntimeError(f"the agent does not serve ({error}):\n{text}") from error
            time.sleep(_POLL_SECONDS)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def peak_rss_mib(pid: int | str = "self") -> float:
    """The most memory that a process had resident so far, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"process {pid} has no VmHWM")
    return int(found[1]) / 1024
