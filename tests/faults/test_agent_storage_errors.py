"""An agent's disk that says no in the middle of a publication: typed, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent_process import QUICK, AgentProcess
from raw_peer import RefusedError
from small_artifact import identity, safetensors_bytes

TYPED = {"enospc", "domain_unavailable", "publication_failed", "quarantine_failed"}
MAX_CALLS = 60


@contextmanager
def failing(agent: AgentProcess, call: str, number: int, error: str) -> Iterator[list[str]]:
    """Each thread's `number`th `call` from now on fails; yields what strace saw in the end."""
    command = [
        *("strace", "-f", "-qq", "-p", str(agent.pid)),
        *("-e", f"trace={call}", "-e", "signal=none"),
        *("-e", f"inject={call}:error={error}:when={number}"),
    ]
    seen: list[str] = []
    # With -qq nothing tells that strace is attached, but the kernel does.
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr is not None
        while "TracerPid:\t0\n" in Path(f"/proc/{agent.pid}/status").read_text():
            assert strace.poll() is None, strace.stderr.read()
        try:
            yield seen
        finally:
            strace.terminate()
            seen += strace.stderr.read().splitlines()


@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT"])
@pytest.mark.parametrize("call", ["mkdir", "rename", "fsync"])
def test_a_publication_that_meets_a_full_disk_or_quota_fails_typed_and_can_be_repeated(
    tmp_path: Path, call: str, error: str
) -> None:
    data = safetensors_bytes({"t": ("U8", (5000,), os.urandom(5000))})
    failures = []
    with AgentProcess(tmp_path, environment=QUICK) as agent, agent.peer() as steady:
        kept = steady.publish(identity("kept"), data).key
        for number in range(1, MAX_CALLS):
            model = f"model-{number}"
            with failing(agent, call, number, error) as seen, agent.peer() as peer:
                try:
                    peer.publish(identity(model), data, {"config.json": b"{}"})
                except RefusedError as refused:
                    failures.append(refused.failure)
            lease, fds = steady.acquire(kept)
            assert os.pread(fds[2], len(data), 0) == data
            steady.release(lease, fds)
            begun = steady.begin(identity(model), len(data) + 2)
            if begun.status == "build":
                steady.stream("model.safetensors", data)
                steady.finalize(identity(model))
            if not any("INJECTED" in line for line in seen):
                break
        else:
            raise AssertionError(f"a publication makes more than {MAX_CALLS} calls of {call}")
        assert os.listdir(agent.domain() / "tmp") == []
    assert failures, "no call was made to fail"
    assert {str(failure.code) for failure in failures} <= TYPED
    assert any(failure.code == "enospc" for failure in failures)
