"""On what a figure was taken: processor, memory, accelerator, versions, commit, load."""

from __future__ import annotations

import os
import platform
import re
import ssl
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]
# What a figure depends on; other folders of a working tree may differ from the commit.
MEASURED_FOLDERS = ("runtime", "operator", "node_agent", "benchmarks")
_PACKAGES = (
    "weightlease",
    "weightlease-operator",
    "weightlease-node-agent",
    "msgspec",
    "numpy",
    "safetensors",
    "torch",
)


class Hardware(msgspec.Struct, frozen=True):
    """One machine; `gpu` and `driver` are empty where there is none, memory in GiB."""

    cpu: str
    cores: int
    memoryGiB: float  # noqa: N815 - a name of the results file
    gpu: str = ""
    driver: str = ""

    @property
    def slug(self) -> str:
        """The machine in a file's name."""
        words = f"{self.gpu or self.cpu} {self.cores} cores"
        return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def hardware() -> Hardware:
    """The machine at hand; `cores` are those that this process may use."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpu, driver = _gpu()
    return Hardware(_cpu(), len(os.sched_getaffinity(0)), round(memory, 1), gpu, driver)


def versions() -> dict[str, str]:
    """What ran and how: interpreter, kernel, TLS library (it hashes), priority, packages."""
    found = {
        "python": platform.python_version(),
        "python_build": " ".join((*platform.python_build(), platform.python_compiler())),
        "kernel": platform.release(),
        "openssl": ssl.OPENSSL_VERSION,
        "scheduler": _scheduler(),
    }
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit that was measured, with `-dirty` where measured folders differ from it.

    On a machine that has the files without their history, BENCHMARK_COMMIT says which they are.
    """
    head = _git("rev-parse", "HEAD")
    if head == "unknown":
        return os.environ.get("BENCHMARK_COMMIT", head)
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *MEASURED_FOLDERS)
    return f"{head}-dirty" if changed else head


def command() -> str:
    """The command line, without interpreter, script's folder and where the results went."""
    given = re.sub(r" --results[ =]\S+", "", " ".join(["", *sys.argv[1:]]))
    return f"benchmarks/{Path(sys.argv[0]).name}{given}"


def load() -> float:
    """Load average of the last minute."""
    return os.getloadavg()[0]


def _scheduler() -> str:
    # A figure taken at real-time priority on a busy machine is another one than on an idle machine.
    realtime = os.sched_getscheduler(0) in {os.SCHED_FIFO, os.SCHED_RR}
    return "real-time" if realtime else f"normal, nice {os.getpriority(os.PRIO_PROCESS, 0)}"


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=False, capture_output=True, text=True
    )
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _gpu() -> tuple[str, str]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return "", ""
    name, _, driver = done.stdout.splitlines()[0].partition(", ")
    return name, driver
