"""Promise 7: closing under a live tensor never crashes; the lock goes when the last view goes."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from descriptors import open_descriptors
from small_artifact import SmallArtifact, Tensor, make_artifact
from weightlease.errors import LiveViewsError, WeightLeaseError
from weightlease.lease import WeightLease

SUPPORT = str(Path(__file__).resolve().parents[2] / "support")
# Python 3.12 warns of what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
WEIGHT = torch.arange(48, dtype=torch.float32).reshape(6, 8)

# The program's first lines: `artifact` is the one in the folder named by the first argument.
PRELUDE = f"""
import os, sys
sys.path.insert(0, {SUPPORT!r})
from pathlib import Path
from small_artifact import SmallArtifact
from weightlease.manifest import parse_manifest
folder = Path(sys.argv[1])
artifact = SmallArtifact(folder, parse_manifest((folder / "manifest.json").read_bytes()))
"""


def run_program(artifact: SmallArtifact, body: str) -> subprocess.CompletedProcess[str]:
    (artifact.folder / "manifest.json").write_bytes(artifact.manifest.canonical_bytes)
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", PRELUDE + body, str(artifact.folder)],
        check=False,
        capture_output=True,
        text=True,
    )


def test_a_tensor_outlives_its_closed_lease_in_a_real_process(artifact: SmallArtifact) -> None:
    done = run_program(
        artifact,
        """
import gc, torch
lease = artifact.lease()
tensor, array = lease.tensor("encoder.weight"), lease.array("encoder.half")
data = lease.buffer("scale")
lease.close()
del lease
gc.collect()
assert artifact.is_leased()
print(tensor.sum().item(), (tensor @ tensor.T).shape, array.sum(), bytes(data))
del tensor, array, data
assert not artifact.is_leased()
""",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1128.0 torch.Size([6, 6]) 65024")


def write_to_tensor(tensor: torch.Tensor) -> None:
    tensor.add_(1)


def write_to_array(tensor: torch.Tensor) -> None:
    tensor.numpy()[0] = 1


@pytest.mark.parametrize("write", [write_to_tensor, write_to_array])
def test_an_in_place_write_ends_the_writer_and_changes_nothing(
    artifact: SmallArtifact, write: Callable[[torch.Tensor], None]
) -> None:
    payload = artifact.folder / "model-00001.safetensors"
    before = payload.read_bytes()
    reached = artifact.folder / "reached"

    def child() -> None:
        faulthandler.disable()
        tensor = artifact.lease().tensor("encoder.weight")
        reached.touch()
        write(tensor)

    assert status_of_fork(child) == -signal.SIGSEGV
    assert reached.exists()
    assert payload.read_bytes() == before
    assert not artifact.is_leased()


Make = Callable[[WeightLease], object]
VIEWS: dict[str, Make] = {
    "a tensor": lambda lease: lease.tensor("encoder.weight"),
    "a tensor derived from a dropped one": lambda lease: lease.tensor("encoder.weight")[2:].T,
    "a detached alias": lambda lease: lease.tensor("encoder.weight").detach(),
    "a module's parameter": lambda lease: torch.nn.Parameter(lease.tensor("encoder.weight")),
    "torch's array": lambda lease: lease.tensor("encoder.weight").numpy(),
    "an array": lambda lease: lease.array("encoder.weight"),
    "an array derived from a dropped one": lambda lease: lease.array("encoder.weight")[1:].T,
    "a buffer": lambda lease: lease.buffer("encoder.weight"),
}


@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS.keys())
def test_a_strict_close_names_what_lives_and_leaves_the_lease_open(
    artifact: SmallArtifact, make: Make
) -> None:
    lease = artifact.lease()
    view = make(lease)
    with pytest.raises(LiveViewsError, match=r"encoder\.weight") as error:
        lease.close(strict=True)
    assert error.value.names == ("encoder.weight",)
    assert lease.tensor("scale").item() == 0.5, "still open"
    del view
    lease.close(strict=True)
    assert lease.closed
    assert not artifact.is_leased()


@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS.keys())
def test_the_lock_goes_with_the_last_view(artifact: SmallArtifact, make: Make) -> None:
    lease = artifact.lease()
    first, second = make(lease), lease.tensor("encoder.half")
    lease.close()
    assert artifact.is_leased()
    del first
    assert artifact.is_leased()
    del second
    assert not artifact.is_leased()


def test_a_slice_of_a_buffer_still_keeps_memory_and_lock(artifact: SmallArtifact) -> None:
    lease = artifact.lease()
    part = lease.buffer("encoder.weight")[:8]
    lease.close()
    assert artifact.is_leased()
    assert bytes(part) == np.arange(2, dtype="<f4").tobytes()
    del part
    assert not artifact.is_leased()


def test_a_copy_is_no_view(artifact: SmallArtifact, tmp_path: Path) -> None:
    made = make_artifact(
        tmp_path / "odd", {"m.safetensors": {"w": ("I32", (1,), b"\1\0\0\0")}}, odd=True
    )
    with artifact.lease() as lease, made.lease() as odd:
        copies = lease.tensor("encoder.weight").clone(), odd.tensor("w"), lease.tensor("empty")
        lease.close(strict=True)
        odd.close(strict=True)
    assert copies[0].sum().item() == 1128.0
    assert copies[1].item() == 1


def test_nobody_can_unmap_a_mapping_that_may_have_views(artifact: SmallArtifact) -> None:
    with artifact.lease() as lease:
        mapping = lease.buffer("scale").obj
        with pytest.raises(BufferError, match="closes by itself"):
            mapping.close()  # type: ignore[attr-defined]


def test_descriptors_return_to_the_baseline_after_many_cycles(artifact: SmallArtifact) -> None:
    baseline = open_descriptors()
    for cycle in range(50):
        lease = artifact.lease(lazily=bool(cycle % 2))
        tensors = dict(lease.tensors()), dict(lease.numpy())
        if cycle % 3:
            del tensors
        lease.close()
        tensors = ({}, {})
        with artifact.lease() as lease, lease.directory():
            pass
    assert open_descriptors() == baseline
    assert not artifact.is_leased()


def test_a_file_takes_one_mapping_however_many_tensors_are_held(tmp_path: Path) -> None:
    tensors: dict[str, Tensor] = {f"t{n}": ("U8", (1,), b"x") for n in range(2000)}
    made = make_artifact(tmp_path / "many", {"m.safetensors": tensors})
    with made.lease() as lease:
        held = dict(lease.tensors()), dict(lease.numpy())
        with open("/proc/self/maps") as maps:
            assert sum(str(made.folder) in line for line in maps) == 1
        # the lease's own and the mapping's, which mmap duplicates
        assert sum(str(made.folder / "m.") in each for each in open_descriptors()) == 2
        del held


def test_an_unclosed_lease_warns_and_is_closed_when_collected(artifact: SmallArtifact) -> None:
    lease = artifact.lease()
    with pytest.warns(ResourceWarning, match="unclosed <WeightLease"):
        del lease
    assert not artifact.is_leased()


def test_a_lease_made_and_closed_is_silent(artifact: SmallArtifact) -> None:
    artifact.lease().close()
    gc.collect()


def test_threads_may_read_and_close_at_once(artifact: SmallArtifact) -> None:
    baseline = open_descriptors()
    for _ in range(10):
        assert read_while_closing(artifact.lease(lazily=True)) == []
    assert open_descriptors() == baseline
    assert not artifact.is_leased()


def read_while_closing(lease: WeightLease) -> list[str]:
    """What three readers saw that was neither the right bytes nor a closed lease."""
    start = threading.Barrier(5)
    wrong: list[str] = []

    def read() -> None:
        start.wait()
        try:
            while torch.equal(lease.tensor("encoder.weight"), WEIGHT):
                pass
            wrong.append("bytes")
        except WeightLeaseError as error:
            if "is closed" not in str(error):
                wrong.append(str(error))

    def close() -> None:
        start.wait()
        lease.close()

    threads = [threading.Thread(target=work) for work in (read, read, read, close, close)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lease.closed
    return wrong


@contextmanager
def forked(body: Callable[[], None]) -> Iterator[None]:
    """Run `body` in a forked child, then the block; the child must have ended well."""
    assert status_of_fork(body) == 0
    yield


def status_of_fork(body: Callable[[], None]) -> int:
    """The exit status of a forked child that runs `body`; negative where a signal ended it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            body()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def test_a_forked_child_that_closes_leaves_the_parent_its_lease(artifact: SmallArtifact) -> None:
    lease = artifact.lease()
    tensor = lease.tensor("encoder.weight")

    def child() -> None:
        assert torch.equal(lease.tensor("encoder.weight"), WEIGHT)
        lease.close()
        assert lease.closed

    with forked(child):
        assert not lease.closed
        assert artifact.is_leased()
        assert torch.equal(tensor, WEIGHT)
        del tensor
        lease.close(strict=True)
        assert not artifact.is_leased()


def test_a_forked_child_keeps_the_artifact_leased_when_its_parent_closes(
    artifact: SmallArtifact,
) -> None:
    lease = artifact.lease()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    lease.close()
    assert artifact.is_leased()
    os.close(writing)
    os.waitpid(pid, 0)
    assert not artifact.is_leased()


def test_a_fork_while_a_thread_holds_the_guard_does_not_hang_the_child(
    artifact: SmallArtifact,
) -> None:
    lease = artifact.lease()
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with lease._guard:
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        with forked(lease.close):
            assert artifact.is_leased()
    finally:
        release.set()
        thread.join()
    lease.close()


LIST_DESCRIPTORS = """
import os
for name in os.listdir("/proc/self/fd"):
    if os.path.exists(f"/proc/self/fd/{name}"):
        print(os.readlink(f"/proc/self/fd/{name}"))
"""


def test_an_executed_program_inherits_nothing(artifact: SmallArtifact) -> None:
    command = [sys.executable, "-c", LIST_DESCRIPTORS]
    with artifact.lease() as lease:
        assert lease.tensor("scale").item() == 0.5
        done = subprocess.run(command, check=True, capture_output=True, text=True, close_fds=False)
    assert done.stdout
    assert str(artifact.folder) not in done.stdout


def test_two_processes_share_the_pages(tmp_path: Path) -> None:
    size = 8 * 1024 * 1024
    body = os.urandom(size)
    made = make_artifact(tmp_path, {"m.safetensors": {"w": ("U8", (size,), body)}})
    (tmp_path / "manifest.json").write_bytes(made.manifest.canonical_bytes)
    program = (
        PRELUDE
        + """
lease = artifact.lease()
print(int(lease.array("w").sum()), flush=True)
sys.stdin.readline()
totals = {"Rss": 0, "Pss": 0, "Private_Dirty": 0}
mine = False
for line in open("/proc/self/smaps"):
    head = line.split()
    if "-" in head[0]:
        mine = line.rstrip().endswith("m.safetensors")
    elif mine and head[0][:-1] in totals:
        totals[head[0][:-1]] += int(head[1]) * 1024
print(*totals.values(), flush=True)
sys.stdin.readline()
lease.close()
"""
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        answers = []
        for process in processes:
            assert process.stdout is not None
            assert int(process.stdout.readline()) == sum(body)
        for process in processes:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            answers.append([int(word) for word in process.stdout.readline().split()])
    finally:
        for process in processes:
            process.communicate("\n", timeout=30)
    for rss, _, private_dirty in answers:
        assert rss >= 0.99 * size
        assert private_dirty == 0
    assert sum(pss for _, pss, _ in answers) <= 1.05 * sum(f.size for f in made.manifest.files)
