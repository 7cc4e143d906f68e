"""The two scripts that run as root, run for real in a mount namespace of their own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from helm import CHART, Object, workload

PRELUDE = r"""
set -euo pipefail
mount_memory() { /bin/sh -euc "$MOUNT_SCRIPT" mount-memory "$FOLDER" "$@"; }
options() { awk -v at="$FOLDER" '$5 == at {print $9, $NF}' /proc/self/mountinfo; }
"""


def in_namespace(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Runs a bash program that may call mount_memory; its mounts end with it."""
    script = (CHART / "files" / "mount-memory.sh").read_text()
    return subprocess.run(
        ["unshare", "--mount", "bash", "-c", PRELUDE + program],
        env=os.environ | {"MOUNT_SCRIPT": script, "FOLDER": str(folder)},
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "memory"
    made.mkdir()
    return made


def test_the_containers_run_these_files_with_these_arguments(default: list[Object]) -> None:
    directories, mounter = workload(default, "agent")["spec"]["template"]["spec"]["initContainers"]
    script = (CHART / "files" / "mount-memory.sh").read_text()
    assert mounter["command"][:2] == ["/bin/sh", "-euc"]
    assert mounter["command"][2].strip() == script.strip()
    assert mounter["command"][4:] == ["/var/lib/weightlease/memory", "25%", "within_size"]
    script = (CHART / "files" / "directories.sh").read_text()
    assert directories["command"][2].strip() == script.strip()


def test_sizes_are_written_as_the_kernel_reads_them(everything: list[Object]) -> None:
    mounter = workload(everything, "agent")["spec"]["template"]["spec"]["initContainers"][1]
    assert mounter["command"][4:] == ["/var/lib/weightlease/memory", "64g", "always"]


def test_the_tmpfs_belongs_to_the_agent_and_runs_nothing(folder: Path) -> None:
    finished = in_namespace(
        folder,
        """
        mount_memory 16m within_size
        options
        stat -c '%a %u %g' "$FOLDER"
        awk -v at="$FOLDER" '$5 == at {print $6}' /proc/self/mountinfo
        """,
    )
    assert finished.returncode == 0, finished.stderr
    size, owner, flags = finished.stdout.splitlines()
    assert "tmpfs" not in size.split(",")
    assert "size=16384k" in size
    assert owner == "750 47000 47000"
    assert {"rw", "nosuid", "nodev", "noexec"} <= set(flags.split(","))


def test_a_second_run_resizes_in_place_and_keeps_what_is_there(folder: Path) -> None:
    finished = in_namespace(
        folder,
        """
        mount_memory 16m within_size
        echo kept > "$FOLDER/file"
        mount_memory 32m never
        mount_memory 32m never
        cat "$FOLDER/file"
        options
        """,
    )
    assert finished.returncode == 0, finished.stderr
    kept, *mounts = finished.stdout.splitlines()
    assert kept == "kept"
    assert len(mounts) == 1
    assert "size=32768k" in mounts[0]
    assert "huge=" not in mounts[0]


def test_shrinking_below_what_is_held_is_refused_and_changes_nothing(folder: Path) -> None:
    finished = in_namespace(
        folder,
        """
        mount_memory 16m never
        head -c 8M /dev/zero > "$FOLDER/file"
        mount_memory 4m never || echo "refused $?"
        options
        stat -c %s "$FOLDER/file"
        """,
    )
    refusal, mounted, size = finished.stdout.splitlines()
    assert refusal == "refused 1"
    assert "size=16384k" in mounted
    assert size == str(8 << 20)
    assert "delete artifacts of the memory class first" in finished.stderr


def test_a_foreign_mount_is_left_alone(folder: Path) -> None:
    finished = in_namespace(
        folder,
        """
        mount --bind / "$FOLDER"
        mount_memory 16m never || echo "refused $?"
        awk -v at="$FOLDER" '$5 == at' /proc/self/mountinfo | wc -l
        """,
    )
    assert finished.stdout.splitlines() == ["refused 1", "1"]
    assert "unmount it, or set memory.enabled=false" in finished.stderr


def make_directories(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the script as root with the one capability that its container has."""
    script = (CHART / "files" / "directories.sh").read_text()
    command = ["setpriv", "--bounding-set", "-all,+chown", "--inh-caps", "-all"]
    return subprocess.run(
        [*command, "/bin/sh", "-euc", script, "directories", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_folders_are_made_once_and_given_to_the_agent(tmp_path: Path) -> None:
    disk, socket = tmp_path / "disk", tmp_path / "run"
    arguments = (f"0750:{disk}", f"0755:{socket}")
    assert make_directories(*arguments).returncode == 0
    (disk / "kept").write_text("kept")
    again = make_directories(*arguments)
    assert again.returncode == 0, again.stderr
    assert (disk / "kept").read_text() == "kept"
    for folder, mode in ((disk, 0o750), (socket, 0o755)):
        found = folder.stat()
        assert (found.st_mode & 0o7777, found.st_uid, found.st_gid) == (mode, 47000, 47000)


def test_a_folder_that_cannot_be_made_stops_the_pod(tmp_path: Path) -> None:
    (tmp_path / "disk").symlink_to("/nowhere")
    finished = make_directories(f"0750:{tmp_path / 'disk'}")
    assert finished.returncode != 0
    assert "disk" in finished.stderr
