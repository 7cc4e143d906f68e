"""Long-lived processes of a cluster: started, found again and killed, also after a crash.

A pid file is JSON, ``{"pid": 1234, "started": 5678}``; ``started`` is field 22 of
``/proc/<pid>/stat`` (clock ticks since boot), so that a reused pid is not taken for ours. Every
process also carries ``DEVCLUSTER_MEMBER=<state folder>`` in its environment and hands it to its
children, which finds those that no pid file knows (containerd's shims, half-started clusters).
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from devcluster.errors import DeadlineExceeded

MEMBER_VARIABLE = "DEVCLUSTER_MEMBER"
_PROC = Path("/proc")
_POLL_SECONDS = 0.05


def spawn(
    argv: Sequence[str | Path], *, state: Path, pid_file: Path, log: Path, env: Mapping[str, str]
) -> int:
    """Starts a daemon in a session of its own; returns its pid."""
    log.parent.mkdir(parents=True, exist_ok=True)
    pid_file.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(part) for part in argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
            env={**os.environ, **env, MEMBER_VARIABLE: str(state)},
        )
    # Nobody waits for it: it outlives this command. Popen would warn about that when collected.
    process.returncode = 0
    written = pid_file.with_suffix(".new")
    written.write_text(json.dumps({"pid": process.pid, "started": _start_time(process.pid)}))
    written.rename(pid_file)
    return process.pid


def pid_of(pid_file: Path) -> int | None:
    """The pid in ``pid_file`` if that very process still runs."""
    try:
        noted = json.loads(pid_file.read_text())
        pid, started = int(noted["pid"]), noted["started"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return pid if started is not None and _start_time(pid) == started else None


def members(state: Path, marks: Mapping[str, str] | None = None) -> set[int]:
    """Processes that carry this cluster's mark, and the given ones, in their environment."""
    wanted = {MEMBER_VARIABLE: str(state), **(marks or {})}
    entries = {f"{name}={value}".encode() for name, value in wanted.items()}
    found = {pid for pid, environment in _environments() if entries <= environment}
    return found - {os.getpid()}


def other_clusters(state: Path) -> set[str]:
    """State folders of clusters, other than this one, of which some process runs."""
    prefix = f"{MEMBER_VARIABLE}=".encode()
    found = {
        os.fsdecode(entry.removeprefix(prefix))
        for _, environment in _environments()
        for entry in environment
        if entry.startswith(prefix)
    }
    return found - {str(state)}


def _environments() -> Iterator[tuple[int, set[bytes]]]:
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            try:
                environment = (folder / "environ").read_bytes()
            except OSError:  # gone meanwhile, or not ours to read
                continue
            yield int(folder.name), set(environment.split(b"\0"))


def in_cgroups(cgroups: Iterable[Path]) -> set[int]:
    """Processes in the given cgroup folders and all below them."""
    found: set[int] = set()
    for cgroup in cgroups:
        for listing in cgroup.rglob("cgroup.procs"):
            try:
                found.update(int(line) for line in listing.read_text().split())
            except OSError:
                continue
    return found - {0}


def kill_all(find: Callable[[], set[int]], what: str, deadline: float = 20.0) -> None:
    """SIGKILL to what ``find`` returns, again and again until it returns nothing.

    Raises DeadlineExceeded with the pids that would not go.
    """
    end = time.monotonic() + deadline
    while alive := {pid for pid in find() if _start_time(pid) is not None}:
        if time.monotonic() > end:
            raise DeadlineExceeded(f"{what} did not end within {deadline:.0f} s: pids {alive}")
        for pid in alive:
            send(pid, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def send(pid: int, number: signal.Signals) -> None:
    """A signal to a process that may already be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def wait_gone(pid: int, deadline: float) -> bool:
    """Whether ``pid`` ended within ``deadline`` seconds."""
    end = time.monotonic() + deadline
    while _start_time(pid) is not None:
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _start_time(pid: int) -> int | None:
    """Ticks since boot at which ``pid`` started; None if there is none, or only its zombie."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the name in parentheses, and may hold spaces and parentheses itself.
    state, *rest = text.rpartition(")")[2].split()
    return None if state in ("Z", "X") else int(rest[18])
