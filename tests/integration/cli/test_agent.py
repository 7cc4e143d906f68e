"""The command line against a real agent, which is killed under it, and beside it as root."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_process import QUICK, AgentProcess
from command_line import spawned, started, weightlease
from small_artifact import safetensors_bytes


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    with AgentProcess(tmp_path, environment=QUICK) as running:
        yield running


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "1_Pooling" / "config.json").write_text('{"pooling": true}')
    weights = {"w": ("F32", (2, 2), bytes(16)), "b": ("U8", (3,), b"abc")}
    (folder / "model.safetensors").write_bytes(safetensors_bytes(weights))
    return folder


def published(agent: AgentProcess, checkpoint: Path) -> str:
    done = weightlease("publish", checkpoint, "--socket", agent.socket, "-o", "json")
    assert done.code == 0, done.error
    assert done.json["status"] == "published"
    return str(done.json["key"])


def test_every_command_works_through_the_socket(agent: AgentProcess, checkpoint: Path) -> None:
    key = published(agent, checkpoint)
    where = ("--socket", agent.socket)
    again = weightlease("publish", checkpoint, *where, "-o", "json")
    assert (again.json["status"], again.json["key"]) == ("present", key)
    assert again.json["payloadBytes"] == (checkpoint / "model.safetensors").stat().st_size
    (entry,) = weightlease("ls", *where, "-o", "json").json["artifacts"]
    assert (entry["key"], entry["namespace"], entry["storageClass"]) == (key, "default", "disk")
    assert "1_Pooling/config.json" in weightlease("inspect", key, *where).out
    assert weightlease("verify", key, *where).code == 0
    ran = spawned("lease", key, *where, "--", "sh", "-c", 'cat "$WEIGHTLEASE_DIR"/1_*/config.json')
    assert (ran.code, ran.out) == (0, '{"pooling": true}')
    assert weightlease("cleanup", key, *where).code == 0
    assert weightlease("cleanup", key, *where).code == 3
    assert weightlease("lease", key, *where).code == 3


def test_the_environment_names_the_socket(agent: AgentProcess) -> None:
    assert spawned("ls", WEIGHTLEASE_SOCKET=str(agent.socket)).error == "no artifacts\n"


def test_a_held_lease_survives_the_agents_death_and_its_successor_knows_the_holder(
    agent: AgentProcess, checkpoint: Path
) -> None:
    key = published(agent, checkpoint)
    holder = started("lease", key, "--socket", agent.socket)
    assert holder.stdout is not None
    lines = [holder.stdout.readline() for _ in range(6)]
    path = next(line.split()[1] for line in lines if line.startswith("model.safetensors"))
    agent.kill()
    assert weightlease("ls", "--socket", agent.socket).code == 6
    assert Path(path).read_bytes() == (checkpoint / "model.safetensors").read_bytes()
    agent.start()
    refused = weightlease("cleanup", key, "--socket", agent.socket)
    assert refused.code == 4
    assert f"uid {os.geteuid()} pid {holder.pid}" in refused.out
    holder.send_signal(signal.SIGTERM)
    holder.communicate(timeout=30)
    assert holder.returncode == 0
    assert weightlease("cleanup", key, "--socket", agent.socket).code == 0


def test_the_agents_root_is_read_directly_and_changed_through_the_socket_alone(
    agent: AgentProcess, checkpoint: Path
) -> None:
    key, domain = published(agent, checkpoint), agent.domain()
    (entry,) = weightlease("ls", "--root", domain, "-o", "json").json["artifacts"]
    assert (entry["key"], entry["state"]) == (key, "ready")
    assert weightlease("verify", key, "--root", domain).code == 0
    for command, what in (("cleanup", key), ("publish", checkpoint)):
        refused = weightlease(command, what, "--root", domain)
        assert refused.code == 7
        assert f"use weightlease {command} --socket" in refused.error
    agent.kill()
    assert weightlease("cleanup", key, "--root", domain).code == 0


def test_root_acts_as_the_owner_of_the_store(checkpoint: Path, tmp_path: Path) -> None:
    uid, root = 47000, tmp_path / "store"
    assert weightlease("publish", checkpoint, "--root", root).code == 0
    for folder, names, files in os.walk(root):
        for name in ("", *names, *files):
            os.chown(os.path.join(folder, name), uid, uid)
    for parent in tmp_path.parents[:-1]:
        parent.chmod(parent.stat().st_mode | 0o011)
    tmp_path.chmod(0o711)
    (entry,) = spawned("ls", "--root", root, "-o", "json").json["artifacts"]
    command = ("sh", "-c", 'id -u; cat "$WEIGHTLEASE_DIR"/1_Pooling/config.json')
    done = spawned("lease", entry["key"], "--root", root, "--", *command)
    assert (done.code, done.out) == (0, f'{uid}\n{{"pooling": true}}'), done.error
    others = ["find", str(root), "-not", "-uid", str(uid)]
    found = subprocess.run(others, check=True, capture_output=True)
    assert found.stdout == b"", "nothing of root's is left that would shut the owner out"
