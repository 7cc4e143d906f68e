"""Runs an action in a forked child under strace: records its system calls, or breaks one of them.

The child waits until strace is attached, so calls are counted from the action's first on and one
publication makes the same calls in the same order every time.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MUTATING = (
    *("openat", "mkdir", "rename", "link", "unlink", "rmdir", "chmod", "fchmod"),
    *("write", "pwrite64", "ftruncate", "fsync", "fdatasync", "flock"),
)
_CALL = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += (-?\d+|\?)(?:<(.*?)>)?(.*)$")
# A call during which another thread made one: shown in two halves, of which the second is its end.
_BEGUN = re.compile(r"^(\d+) +(\w+)(\(.*) <unfinished \.\.\.>$")
_ENDED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)$")
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_DESCRIPTOR = re.compile(r"^(?:\d+|AT_FDCWD)<([^>]*)>")


@dataclass(frozen=True)
class Call:
    """One system call: its name, its how-manieth of that name, the paths and numbers in it."""

    name: str
    number: int
    arguments: str
    result: str
    opened: str

    @property
    def descriptor(self) -> str:
        """Path of the descriptor that is the first argument."""
        match = _DESCRIPTOR.match(self.arguments)
        return match[1] if match else ""

    @property
    def paths(self) -> list[str]:
        """Absolute paths among the arguments, relative ones resolved by the descriptor."""
        return [os.path.join(self.descriptor, text) for text in _TEXT.findall(self.arguments)]

    @property
    def creates(self) -> bool:
        return self.name == "openat" and "O_CREAT" in self.arguments

    @property
    def mode(self) -> int:
        return int(self.arguments.rsplit(", ", 1)[1], 8)

    @property
    def succeeded(self) -> bool:
        return self.result.isdigit()


@dataclass(frozen=True)
class Run:
    """How the child ended, and what strace saw: `status` is an exit code or a negative signal."""

    status: int
    calls: list[Call]


def run(action: Callable[[], None], folder: Path, *options: str) -> Run:
    """Run `action` in a child under strace with `options`."""
    trace = folder / "trace"
    wait, go = os.pipe()
    child = os.fork()
    if child == 0:
        _child(action, wait, go)
    os.close(wait)
    command = ["strace", "-f", "-y", "-s", "4096", "-o", str(trace), "-p", str(child), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr is not None
        attached = strace.stderr.readline()
        os.write(go, b"x")
        os.close(go)
        _, status = os.waitpid(child, 0)
        strace.stderr.read()
    assert "attached" in attached, attached
    return Run(os.waitstatus_to_exitcode(status), parse(trace.read_text()))


# Who does not wait for another thread's fsync is found out by one that takes its time.
SLOW_SYNCS = ("-e", "inject=fsync:delay_enter=100000")


def record(action: Callable[[], None], folder: Path, *options: str) -> list[Call]:
    """The mutating system calls of `action`."""
    done = run(action, folder, "-e", f"trace={','.join(MUTATING)}", *options)
    assert done.status == 0
    return done.calls


def kill_at(call: Call) -> tuple[str, ...]:
    """Options that kill the process as it enters `call`."""
    return ("-e", f"trace={call.name}", "-e", f"inject={call.name}:signal=KILL:when={call.number}")


def fail_at(call: Call, error: str) -> tuple[str, ...]:
    """Options that make `call` fail with `error` instead of happening."""
    return (
        "-e",
        f"trace={call.name}",
        "-e",
        f"inject={call.name}:error={error}:when={call.number}",
    )


def parse(trace: str) -> list[Call]:
    """The calls in the order in which they ended."""
    counts: Counter[str] = Counter()
    begun: dict[tuple[str, str], str] = {}
    calls = []
    for line in trace.splitlines():
        if half := _BEGUN.match(line):
            begun[half[1], half[2]] = half[2] + half[3]
            continue
        half = _ENDED.match(line)
        whole = begun.pop((half[1], half[2]), "") + half[3] if half else line
        match = _CALL.match(whole)
        if match is None:
            continue
        name, arguments, result, opened, _ = match.groups()
        counts[name] += 1
        calls.append(Call(name, counts[name], arguments, result, opened or ""))
    return calls


def mutations(calls: list[Call], root: Path) -> list[Call]:
    """The calls that can change what lies below `root`, or who locks it."""

    def changes(call: Call) -> bool:
        if call.name == "openat" and not call.creates:
            return False
        below = f"{root}/"
        places = [call.descriptor, *call.paths, call.opened]
        return any(place.startswith(below) or place == str(root) for place in places)

    return [call for call in calls if changes(call)]


def _child(action: Callable[[], None], wait: int, go: int) -> None:
    status = 70
    try:
        os.close(go)
        os.read(wait, 1)
        action()
        status = 0
    except BaseException:  # noqa: BLE001 - the child must not return into the test run
        traceback.print_exc()
    finally:
        os._exit(status)


KILLED = -signal.SIGKILL
