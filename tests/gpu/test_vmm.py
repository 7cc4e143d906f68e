"""The whole contract on a GPU: processes of their own, virtual memory management, real faults."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tower import KEY, Tower, given
from weightlease.gpu import WeightCacheClient
from weightlease.gpu.arena import Arena, attach_segments
from weightlease.gpu.cuda_vmm import CudaDevice
from weightlease.gpu.errors import DeviceError, LiveTensorsError, UnsupportedError
from weightlease.gpu.fingerprint import Fingerprinter

Start = Callable[..., Any]
CONSUMERS = 16
CYCLES = 1000


@pytest.fixture
def donor(start: Start, place: Path) -> Any:
    running = start("donor", str(place), "vmm")
    running.said = running.line()
    assert running.said["ready"], running.said
    return running


def computed(place: Path) -> float:
    with torch.no_grad(), WeightCacheClient(place, KEY).load_model(Tower) as attached:
        return float(attached.model(given()).sum())


def free_memory() -> int:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def test_an_attached_model_computes_bit_for_bit_what_the_donors_does(
    donor: Any, place: Path
) -> None:
    assert computed(place) == donor.said["before"] == donor.said["after"]


def test_weights_are_mapped_aligned_and_take_no_memory_of_the_consumer(
    donor: Any, place: Path
) -> None:
    computed(place)
    before = free_memory()
    with WeightCacheClient(place, KEY).load_model(Tower) as attached:
        assert all(tensor.data_ptr() % 256 == 0 for tensor in attached.model.parameters())
        assert attached.model.last.weight is attached.model.layers[0].weight
        assert attached.layout.nbytes > 100_000_000
        assert before - free_memory() < 2 << 20


def test_a_donor_holds_its_weights_once(donor: Any) -> None:
    # the numbers of the fingerprint's key take 8 MiB, in a block of torch's allocator of 20 MiB
    assert donor.said["grown_bytes"] <= 32 << 20


def test_a_stray_write_faults_in_its_own_process_alone(
    start: Start, donor: Any, place: Path
) -> None:
    with torch.no_grad(), WeightCacheClient(place, KEY).load_model(Tower) as attached:
        writer = start("consumer", str(place), "write")
        assert "illegal memory access" in writer.line()["refused"]
        writer.process.wait(60)
        assert float(attached.model(given()).sum()) == donor.said["before"]
    assert computed(place) == donor.said["before"]
    donor.release()
    assert donor.line()["fingerprint"]


@pytest.mark.parametrize("what", ["change", "swap"])
def test_a_hostile_writable_import_is_found_by_the_fingerprint(
    start: Start, donor: Any, place: Path, what: str
) -> None:
    assert start("consumer", str(place), what).line() == {"done": what}
    donor.release()
    said = donor.line()
    assert said["error"] == "WeightsChangedError"
    assert "last.weight" in said["details"]["names"]


def test_a_consumer_goes_on_when_its_donor_is_killed(donor: Any, place: Path) -> None:
    with torch.no_grad(), WeightCacheClient(place, KEY).load_model(Tower) as attached:
        donor.process.kill()
        donor.process.wait(60)
        assert float(attached.model(given()).sum()) == donor.said["before"]


def test_a_tensor_that_lives_outside_is_named_and_can_still_be_read(
    donor: Any, place: Path
) -> None:
    kept: list[torch.Tensor] = []
    with (
        pytest.raises(LiveTensorsError, match="scale"),
        WeightCacheClient(place, KEY).load_model(Tower) as attached,
    ):
        kept.append(attached.model.scale[5:])
    assert float(kept[0].sum()) == kept[0].numel()
    del attached
    kept.clear()
    computed(place)


def test_a_thousand_attaches_leak_nothing(donor: Any, place: Path) -> None:
    client = WeightCacheClient(place, KEY)
    for _ in range(3):
        client.attach(Tower).detach()

    def resources() -> tuple[int, int]:
        return free_memory(), len(os.listdir("/proc/self/fd"))

    before = resources()
    maps = Path("/proc/self/maps").read_text().count("\n")
    for _ in range(CYCLES):
        client.attach(Tower).detach()
    assert resources() == before
    assert Path("/proc/self/maps").read_text().count("\n") <= maps + 16


def test_sixteen_processes_attach_at_once(start: Start, donor: Any, place: Path) -> None:
    holders = [start("consumer", str(place), "hold") for _ in range(CONSUMERS)]
    assert all(holder.line()["ready"] for holder in holders)
    for holder in holders:
        holder.release()
    assert {holder.line()["output"] for holder in holders} == {donor.said["before"]}
    assert {holder.process.wait(60) for holder in holders} == {0}


def test_a_consumer_killed_while_it_holds_does_not_hold_its_donor(
    start: Start, donor: Any, place: Path
) -> None:
    holder = start("consumer", str(place), "hold")
    assert holder.line()["ready"]
    holder.process.kill()
    donor.release()
    assert donor.line()["granted"] == 1


def test_namespaces_of_its_own_do_not_keep_a_consumer_away(
    start: Start, donor: Any, place: Path
) -> None:
    assert shutil.which("unshare")
    apart = ("unshare", "--ipc", "--pid", "--fork", "--net", "--mount-proc")
    said = start("consumer", str(place), "run", before=apart).line()
    assert said["output"] == donor.said["before"]


def test_the_gpu_is_named_by_its_physical_uuid(start: Start, donor: Any, place: Path) -> None:
    listed = subprocess.run(["nvidia-smi", "-L"], check=True, capture_output=True, text=True).stdout
    uuid = CudaDevice().uuid
    assert uuid in listed
    said = start("consumer", str(place), "run", env={"CUDA_VISIBLE_DEVICES": uuid}).line()
    assert said["output"] == donor.said["before"]


def test_live_tensors_are_lent_over_cuda_ipc(start: Start, place: Path) -> None:
    donor = start("donor", str(place), "cuda-ipc")
    before = donor.line()["before"]
    assert computed(place) == before
    first, second = (start("consumer", str(place), "hold") for _ in range(2))
    assert first.line()["ready"]
    assert second.line()["ready"]
    assert first.end() == 0
    second.release()
    assert second.line()["output"] == before
    assert donor.end() == 0


def test_expandable_segments_are_refused_for_cuda_ipc_alone(start: Start, place: Path) -> None:
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    refused = start("donor", str(place), "cuda-ipc", env=env).line()
    assert refused["details"] == {"feature": "expandable_segments"}
    lent = start("donor", str(place), "vmm", env=env).line()
    assert computed(place) == lent["before"]


def test_a_fingerprint_is_the_same_on_the_gpu_and_on_the_cpu() -> None:
    data = torch.randint(0, 256, (9_000_001,), dtype=torch.uint8)
    on_cpu = Fingerprinter(torch.device("cpu"), b"x" * 32).take(data)
    assert Fingerprinter(torch.device("cuda"), b"x" * 32).take(data.cuda()) == on_cpu


def test_memory_lives_while_a_descriptor_does_and_is_free_with_the_last() -> None:
    device = CudaDevice()
    before = free_memory()
    arena = Arena(device, 512 << 20, segments=4)
    arena.grow(arena.nbytes)
    arena.tensor.fill_(7)
    kept, sizes = [os.dup(fd) for fd in arena.descriptors], arena.sizes
    arena.close()
    del arena
    assert before - free_memory() == 512 << 20
    mapping = attach_segments(device, kept, sizes)
    for fd in kept:
        os.close(fd)
    assert int(mapping.tensor()[-1]) == 7
    del mapping
    assert free_memory() == before


def test_errors_of_the_driver_say_what_to_do() -> None:
    device = CudaDevice()
    with pytest.raises(DeviceError, match="free GPU memory") as raised:
        device.create(1 << 42)
    assert raised.value.call == "cuMemCreate"
    with open("/dev/null", "rb") as null, pytest.raises(DeviceError, match="attach again"):
        device.import_descriptor(null.fileno(), device.granularity)
    arena = Arena(device, 4 << 20)
    arena.grow(arena.nbytes)
    with pytest.raises(DeviceError, match="another size"):
        attach_segments(device, arena.descriptors, [8 << 20])
    with pytest.raises(DeviceError, match="no GPU is visible"):
        CudaDevice("cuda:99")
    with pytest.raises(UnsupportedError):
        CudaDevice("cpu")
