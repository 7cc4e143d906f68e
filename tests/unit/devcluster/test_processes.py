import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import processes


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[int]:
    pid = processes.spawn(
        [sys.executable, "-c", "import time; print('hello', flush=True); time.sleep(600)"],
        state=tmp_path,
        pid_file=tmp_path / "pids" / "daemon.json",
        log=tmp_path / "daemon.log",
        env={"NODE": "a"},
    )
    yield pid
    processes.send(pid, signal.SIGKILL)
    _reap(pid)


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return


def test_a_daemon_is_found_by_its_pid_file(daemon: int, tmp_path: Path) -> None:
    assert processes.pid_of(tmp_path / "pids" / "daemon.json") == daemon


def test_a_reused_pid_is_not_taken_for_the_daemon(tmp_path: Path) -> None:
    file = tmp_path / "reused.json"
    file.write_text(json.dumps({"pid": os.getpid(), "started": 1}))
    assert processes.pid_of(file) is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"pid": "x", "started": 1}'])
def test_a_torn_pid_file_names_no_process(tmp_path: Path, text: str) -> None:
    file = tmp_path / "torn.json"
    file.write_text(text)
    assert processes.pid_of(file) is None


def test_a_daemon_whose_pid_file_is_lost_is_found_by_its_mark(daemon: int, tmp_path: Path) -> None:
    (tmp_path / "pids" / "daemon.json").unlink()
    assert processes.members(tmp_path) == {daemon}
    assert processes.members(tmp_path, {"NODE": "a"}) == {daemon}
    assert processes.members(tmp_path, {"NODE": "b"}) == set()
    assert processes.members(tmp_path / "other") == set()


def test_killing_all_ends_the_marked_and_nobody_else(daemon: int, tmp_path: Path) -> None:
    processes.kill_all(lambda: processes.members(tmp_path), "the daemon")
    assert processes.members(tmp_path) == set()
    assert processes.wait_gone(daemon, deadline=5)


def test_another_cluster_is_known_by_its_state_folder(daemon: int, tmp_path: Path) -> None:
    assert str(tmp_path) in processes.other_clusters(tmp_path / "mine")
    assert str(tmp_path) not in processes.other_clusters(tmp_path)
