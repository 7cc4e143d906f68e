"""The command line in odd surroundings: streams, locales, names, signals and paths."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from command_line import command, spawned, started, weightlease
from small_artifact import safetensors_bytes
from weightlease.cli.exit_codes import TABLE

OTHER_UID = 12345


@pytest.fixture
def odd_key(tmp_path: Path, root: Path) -> str:
    """An artifact whose files have names that a terminal would obey or cannot show."""
    folder = tmp_path / "odd"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(safetensors_bytes({"b": ("U8", (1,), b"x")}))
    for name in ("é.json", "a\nready   b.json", "\x1b[2Jc.json", "\u202ed.json"):
        (folder / name).write_text("{}")
    done = weightlease("publish", folder, "--root", root, "--model-id", "m\x1b[8m", "-o", "json")
    assert done.code == 0, done.error
    return str(done.json["key"])


def under_shell(redirection: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *command(arguments)],
        check=False,
        capture_output=True,
        text=True,
    )


@contextmanager
def effective_user(uid: int) -> Iterator[None]:
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


# ---- names ----


def test_a_name_cannot_command_the_terminal(root: Path, odd_key: str) -> None:
    shown = weightlease("inspect", odd_key, "--root", root, "--tensors").out
    assert all(each == "\n" or each.isprintable() for each in shown)
    for escaped in (r"a\nready   b.json", r"\x1b[2Jc.json", r"\u202ed.json", r"m\x1b[8m", "é.json"):
        assert escaped in shown
    refused = weightlease("ls", "--root", "/no/such\x1b[2J\nstore")
    assert refused.error.count("\n") == 1
    assert "\x1b" not in refused.error


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_name_that_the_terminal_cannot_show_is_escaped(
    root: Path, odd_key: str, encoding: str
) -> None:
    arguments = command(("inspect", odd_key, "--root", root))
    done = subprocess.run(
        arguments, check=True, capture_output=True, env=os.environ | {"PYTHONIOENCODING": encoding}
    )
    expected = {"ascii": rb"\xe9.json", "latin-1": b"\xe9.json", "utf-8": b"\xc3\xa9.json"}
    assert expected[encoding] in done.stdout
    assert done.stderr == b""


# ---- streams ----


@pytest.mark.parametrize("redirection", ["2>&-", "<&- 2>&-", "<&- >&- 2>&-"])
def test_with_its_streams_closed_it_still_publishes(
    checkpoint: Path, root: Path, redirection: str
) -> None:
    done = under_shell(redirection, "publish", checkpoint, "--root", root, "-o", "json")
    assert done.returncode == 0
    (entry,) = weightlease("ls", "--root", root, "-o", "json").json["artifacts"]
    assert weightlease("verify", entry["key"], "--root", root).code == 0


def test_an_error_without_a_standard_error_does_not_come_out_as_a_result(root: Path) -> None:
    done = under_shell("2>&-", "ls", "--root", root, "-o", "json")
    assert (done.returncode, done.stdout) == (3, "")


def test_help_is_whole_where_docstrings_are_stripped() -> None:
    done = subprocess.run(
        [sys.executable, "-OO", "-m", "weightlease.cli", "--help"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert TABLE in done.stdout


# ---- signals ----


@pytest.mark.parametrize("arguments", [("lease",), ("verify",), ("inspect",)])
def test_ctrl_c_ends_a_wait_for_somebody_elses_lock(
    root: Path, key: str, arguments: tuple[str, ...]
) -> None:
    with open(root / "locks" / f"{key}.artifact.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = started(*arguments, key, "--root", root)
        lock_path = os.path.realpath(lock.name)
        wait_for_open(waiting.pid, lock_path)
        waiting.send_signal(signal.SIGINT)
        _, error = waiting.communicate(timeout=30)
    assert (waiting.returncode, error) == (130, "weightlease: interrupted\n")


def wait_for_open(pid: int, path: str) -> None:
    """Poll until process `pid` has `path` open."""
    folder, pause = Path(f"/proc/{pid}/fd"), threading.Event()
    for _ in range(3000):
        for each in folder.iterdir():
            try:
                if os.readlink(each) == path:
                    return
            except FileNotFoundError:
                continue
        pause.wait(0.01)
    raise AssertionError(f"{path} was never opened")


# ---- paths ----


@pytest.mark.parametrize("which", ["--root", "source"])
def test_an_empty_path_is_a_mistake_and_not_the_current_folder(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    monkeypatch.chdir(tmp_path)
    source, root = (checkpoint, "") if which == "--root" else ("", tmp_path / "store")
    done = weightlease("publish", source, "--root", root)
    assert (done.code, "must not be empty" in done.error) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_a_tilde_is_the_home_folder(checkpoint: Path, tmp_path: Path) -> None:
    done = spawned("publish", checkpoint, "--root=~/store", HOME=str(tmp_path))
    assert done.code == 0
    assert (tmp_path / "store" / "domain.json").exists()


@pytest.mark.parametrize("below", [".", "store", "1_Pooling/.."])
def test_a_root_in_the_published_folder_is_refused_before_it_is_made(
    checkpoint: Path, tmp_path: Path, below: str
) -> None:
    folder = tmp_path / "checkpoint"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes((checkpoint / "model.safetensors").read_bytes())
    before = sorted(folder.rglob("*"))
    done = weightlease("publish", folder, "--root", folder / below)
    assert (done.code, "outside of it" in done.error) == (2, True)
    assert sorted(folder.rglob("*")) == before
    beside = weightlease("publish", folder, "--root", tmp_path / "checkpoint-store")
    assert beside.code == 0


def test_a_store_that_may_not_be_looked_at_is_refused_and_not_absent(
    root: Path, key: str, tmp_path: Path
) -> None:
    for parent in (tmp_path, *tmp_path.parents[:-1]):
        parent.chmod(parent.stat().st_mode | 0o011)
    with effective_user(OTHER_UID):
        done = weightlease("verify", key, "--root", root)
    assert (done.code, "permission_denied" in done.error) == (7, True)
