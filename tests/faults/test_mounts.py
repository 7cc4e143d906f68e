"""The CSI driver's mounter on a real kernel, in a mount namespace that ends with each test."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from weightlease_csi_driver.checks import Target
from weightlease_csi_driver.mounts import Bind, HostMounter

CLONE_NEWNS = 0x20000
TARGET = Target("uid-0", "weights")
HANDLE = "a" * 32
KEY = "b" * 64


@dataclass
class Node:
    """The folders of a node: the kubelet's, the agent's volumes, a store."""

    root: Path

    @property
    def kubelet(self) -> Path:
        return self.root / "kubelet"

    @property
    def pod(self) -> Path:
        return self.root / "volumes" / HANDLE / "pod"

    @property
    def payloads(self) -> Path:
        return self.root / "store" / "disk" / "team-a" / "artifacts" / KEY

    @property
    def target(self) -> Path:
        return Path(TARGET.path(str(self.kubelet)))

    @property
    def mounter(self) -> HostMounter:
        return HostMounter(str(self.kubelet))

    @property
    def binds(self) -> list[Bind]:
        payloads = ("disk", "team-a", "artifacts", KEY)
        return [
            Bind(str(self.root / "volumes"), (HANDLE, "pod")),
            Bind(str(self.root / "store"), payloads, (".content", "payloads")),
        ]

    def make(self) -> None:
        self.target.parent.mkdir(parents=True)
        self.make_pod_folder()
        self.payloads.mkdir(parents=True)
        (self.payloads / "model.safetensors").write_bytes(b"weights")

    def make_pod_folder(self) -> None:
        for folder in (self.pod / "files", self.pod / ".content" / "payloads"):
            folder.mkdir(parents=True)
        link = self.pod / "files" / "model.safetensors"
        link.symlink_to("../.content/payloads/model.safetensors")

    def mounts(self) -> int:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return sum(str(self.target) in line.split()[4] for line in lines)


@pytest.fixture
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="wl-") as folder:
        made = Node(Path(folder))
        made.make()
        yield made


def in_own_mounts(action: Callable[[], None]) -> None:
    """Run `action` in a forked child whose mounts nobody else sees."""
    child = os.fork()
    if child == 0:
        status = 70
        try:
            assert ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0
            subprocess.run(["mount", "--make-rprivate", "/"], check=True)
            action()
            status = 0
        except BaseException:  # noqa: BLE001 - the child must not return into the test run
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_volume_shows_files_and_socket_and_is_written_by_nobody(node: Node) -> None:
    def live() -> None:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(node.pod / "agent.sock"))
            server.listen()
            node.mounter.show(TARGET, node.binds)
            assert (node.target / "files" / "model.safetensors").read_bytes() == b"weights"
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(node.target / "agent.sock"))
        for place in ("x", "files/x", "files/model.safetensors", ".content/payloads/x"):
            with pytest.raises(OSError, match="Read-only file system"):
                (node.target / place).write_bytes(b"x")
        # what the agent makes anew appears in the mount
        (node.pod / "agent.sock").unlink()
        (node.pod / "agent.sock").write_bytes(b"new")
        assert (node.target / "agent.sock").read_bytes() == b"new"

    in_own_mounts(live)


def test_showing_again_mounts_nothing_on_top(node: Node) -> None:
    def live() -> None:
        for _ in range(3):
            node.mounter.show(TARGET, node.binds)
            assert node.mounts() == 2

    in_own_mounts(live)


def test_a_mount_that_a_dead_driver_left_half_made_is_made_whole(node: Node) -> None:
    def live() -> None:
        node.mounter.show(TARGET, node.binds[:1])
        assert not (node.target / "files" / "model.safetensors").exists()
        node.mounter.show(TARGET, node.binds)
        assert (node.target / "files" / "model.safetensors").read_bytes() == b"weights"
        assert node.mounts() == 2

    in_own_mounts(live)


def test_a_writable_mount_that_a_dead_driver_left_is_not_taken_for_ours(node: Node) -> None:
    def live() -> None:
        node.target.mkdir()
        subprocess.run(["mount", "--bind", str(node.pod), str(node.target)], check=True)
        node.mounter.show(TARGET, node.binds)
        with pytest.raises(OSError, match="Read-only file system"):
            (node.target / "x").write_bytes(b"x")

    in_own_mounts(live)


def test_a_mount_of_a_folder_that_was_made_anew_is_replaced(node: Node) -> None:
    def live() -> None:
        node.mounter.show(TARGET, node.binds)
        node.pod.rename(node.root / "old")
        node.make_pod_folder()
        (node.pod / "new").touch()
        assert not (node.target / "new").exists()
        node.mounter.show(TARGET, node.binds)
        assert (node.target / "new").exists()
        assert node.mounts() == 2

    in_own_mounts(live)


def test_hiding_takes_every_mount_and_leaves_open_files_readable(node: Node) -> None:
    def live() -> None:
        node.mounter.show(TARGET, node.binds)
        for _ in range(2):
            subprocess.run(["mount", "--bind", str(node.pod), str(node.target)], check=True)
        (node.pod / "held").write_bytes(b"held")
        with open(node.target / "held", "rb") as file:
            node.mounter.hide(TARGET)
            assert file.read() == b"held"
        assert node.mounts() == 0
        assert not node.target.exists()
        assert not node.mounter.exists(TARGET)
        node.mounter.hide(TARGET)
        assert (node.payloads / "model.safetensors").read_bytes() == b"weights"

    in_own_mounts(live)


def test_a_failed_mount_leaves_none(node: Node) -> None:
    def live() -> None:
        shutil.rmtree(node.payloads)
        with pytest.raises(FileNotFoundError):
            node.mounter.show(TARGET, node.binds)
        assert node.mounts() == 0

    in_own_mounts(live)


@pytest.mark.parametrize(
    "planted",
    [
        "volumes/" + HANDLE,
        "volumes/" + HANDLE + "/pod",
        "volumes/" + HANDLE + "/pod/.content",
        "volumes/" + HANDLE + "/pod/.content/payloads",
        "store/disk",
        "store/disk/team-a/artifacts/" + KEY,
        "kubelet/pods/uid-0",
        "kubelet/pods/uid-0/volumes/kubernetes.io~csi/weights",
        "kubelet/pods/uid-0/volumes/kubernetes.io~csi/weights/mount",
    ],
)
def test_a_planted_link_leads_nowhere(node: Node, planted: str) -> None:
    def live() -> None:
        secret = node.root / "secret"
        secret.mkdir()
        place = node.root / planted
        if place.exists():
            shutil.rmtree(place)
        place.symlink_to(secret)
        with pytest.raises(NotADirectoryError):
            node.mounter.show(TARGET, node.binds)
        lines = Path("/proc/self/mountinfo").read_text()
        assert str(node.root) not in lines
        assert list(secret.iterdir()) == []

    in_own_mounts(live)
