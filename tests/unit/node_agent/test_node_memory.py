"""The memory that a tmpfs may still take: the host's, within the control group's limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from weightlease_node_agent.node_memory import available_memory


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:       100 kB\nMemAvailable:    10 kB\nHugePages_Total: 0\n")
    return path


def group(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "cgroup"


def test_page_cache_is_not_counted_against_the_group(tmp_path: Path, meminfo: Path) -> None:
    files = {
        "memory.max": "8000\n",
        "memory.current": "7000\n",
        "memory.stat": "anon 10\ninactive_file 2000\nactive_file 3000\n",
    }
    assert available_memory(meminfo, group(tmp_path, files)) == 6000


def test_the_host_bounds_a_group_without_a_limit(tmp_path: Path, meminfo: Path) -> None:
    files = {"memory.max": "max\n", "memory.current": "7000\n", "memory.stat": ""}
    assert available_memory(meminfo, group(tmp_path, files)) == 10 * 1024


def test_version_1_of_control_groups_is_read_too(tmp_path: Path, meminfo: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": "5000\n",
        "memory/memory.usage_in_bytes": "4500\n",
        "memory/memory.stat": "total_inactive_file 100\ntotal_active_file 50\ninactive_file 7\n",
    }
    assert available_memory(meminfo, group(tmp_path, files)) == 650


def test_a_group_past_its_limit_leaves_nothing(tmp_path: Path, meminfo: Path) -> None:
    files = {"memory.max": "10\n", "memory.current": "20\n", "memory.stat": ""}
    assert available_memory(meminfo, group(tmp_path, files)) == 0


def test_a_kernel_that_says_nothing_bounds_nothing(tmp_path: Path) -> None:
    assert available_memory(tmp_path / "none", tmp_path / "nothing") is None


def test_this_machine_says_something() -> None:
    assert available_memory() is not None
