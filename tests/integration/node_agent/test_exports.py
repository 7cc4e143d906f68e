"""Descriptors come from a read-only mount, or they do not come."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent_process import QUICK, AgentProcess, wait_until
from raw_peer import RefusedError
from small_artifact import identity


def agent_with_export(folder: Path, options: str) -> AgentProcess:
    """An agent in a mount namespace where the store is mounted once more, with `options`."""
    store, export = folder / "store" / "disk", folder / "export"
    store.mkdir(parents=True)
    export.mkdir()
    script = f'mount --bind -o {options} "{store}" "{export}" && exec "$@"'
    return AgentProcess(
        folder,
        environment=QUICK | {"WEIGHTLEASE_DISK_EXPORT": str(export)},
        prefix=["unshare", "--mount", "sh", "-ec", script, "sh"],
    )


def test_not_even_root_can_write_through_what_a_consumer_gets(
    tmp_path: Path, payload: bytes
) -> None:
    with agent_with_export(tmp_path, "ro") as agent, agent.peer() as peer:
        key = peer.publish(identity(), payload, {"config.json": b"{}"}).key
        lease, fds = peer.acquire(key)
        for fd in fds:
            assert os.fstatvfs(fd).f_flag & os.ST_RDONLY
            with pytest.raises(OSError, match="Read-only"):
                os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
            with pytest.raises(OSError, match="Read-only"):
                os.fchmod(fd, 0o777)
        assert os.pread(fds[2], len(payload), 0) == payload
        peer.release(lease, fds)
        assert peer.cleanup(key).status == "removed"


def test_an_export_that_turns_writable_gives_nothing_away(tmp_path: Path, payload: bytes) -> None:
    with agent_with_export(tmp_path, "ro") as agent, agent.peer() as peer:
        key = peer.publish(identity(), payload).key
        enter = f"nsenter --target {agent.pid} --mount"
        assert os.system(f"{enter} mount -o remount,bind,rw {tmp_path / 'export'}") == 0  # noqa: S605
        with pytest.raises(RefusedError) as refused:
            peer.acquire(key)
        assert refused.value.failure.code == "domain_unavailable"
        assert "writable" in refused.value.failure.message
        assert peer.fds == []
        wait_until(lambda: agent.has_logged("export is writable, refusing to hand out descriptors"))
        assert agent.get("/readyz")[0] == 503
        assert peer.inspect(key)[0].leases == ()


def test_an_agent_does_not_start_on_a_writable_export(tmp_path: Path) -> None:
    agent = agent_with_export(tmp_path, "rw")
    with pytest.raises(AssertionError, match="writable"):
        agent.start()
    assert agent.wait() == 1
