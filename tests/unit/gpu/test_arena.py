"""Shared memory: mapped in order, undone in order, kept as long as anything looks at it."""

from __future__ import annotations

import gc
import os
import signal

import pytest
import torch

from descriptors import open_descriptors
from weightlease.gpu.arena import MAX_SEGMENTS, Arena, attach_segments
from weightlease.gpu.errors import DeviceError, LayoutError
from weightlease.gpu.fake import GRANULARITY, FakeDevice


def filled(device: FakeDevice, granules: int, segments: int) -> Arena:
    arena = Arena(device, granules * GRANULARITY, segments=segments)
    arena.grow(arena.nbytes)
    arena.tensor.copy_(torch.arange(arena.nbytes, dtype=torch.int64).to(torch.uint8))
    return arena


@pytest.mark.parametrize("segments", [1, 3, 16])
def test_an_importer_reads_what_the_owner_wrote(segments: int) -> None:
    arena = filled(FakeDevice(), 7, segments)
    assert sum(arena.sizes) == arena.nbytes
    assert len(arena.sizes) <= segments
    mapping = attach_segments(FakeDevice(), arena.descriptors, arena.sizes)
    assert torch.equal(mapping.tensor(), arena.tensor)


def test_an_arena_is_rounded_up_by_less_than_one_granule() -> None:
    arena = Arena(FakeDevice(), 5 * GRANULARITY + 1, segments=4)
    assert arena.nbytes == 6 * GRANULARITY
    assert all(size % GRANULARITY == 0 for size in arena.sizes)


def test_memory_outlives_its_owner_while_a_descriptor_or_a_mapping_does() -> None:
    arena = filled(FakeDevice(), 2, 2)
    kept = [os.dup(fd) for fd in arena.descriptors]
    expected, sizes = arena.tensor.clone(), arena.sizes
    arena.close()
    del arena
    mapping = attach_segments(FakeDevice(), kept, sizes)
    for fd in kept:
        os.close(fd)
    assert torch.equal(mapping.tensor(), expected)


def test_an_arena_is_grown_segment_by_segment() -> None:
    device = FakeDevice()
    arena = Arena(device, 8 * GRANULARITY, segments=4)
    assert device.live["mapped_bytes"] == 0
    arena.grow(GRANULARITY)
    assert device.live["mapped_bytes"] == 2 * GRANULARITY
    arena.grow(2 * GRANULARITY + 1)
    assert device.live["mapped_bytes"] == 4 * GRANULARITY


def test_handles_are_given_up_once_mapped_and_everything_goes_with_the_last_view() -> None:
    arena = filled(FakeDevice(), 3, 3)
    device = FakeDevice()
    mapping = attach_segments(device, arena.descriptors, arena.sizes)
    assert device.live["handles"] == 0
    view = mapping.tensor().view(torch.int32)[5:9]
    del mapping
    gc.collect()
    assert device.live["mapped_bytes"] == arena.nbytes
    assert view.tolist() == arena.tensor.view(torch.int32)[5:9].tolist()
    del view
    assert device.leaked() == {}


def test_a_mapping_is_undone_in_one_order() -> None:
    arena = filled(FakeDevice(), 2, 2)
    device = FakeDevice()
    mapping = attach_segments(device, arena.descriptors, arena.sizes)
    device.calls.clear()
    del mapping
    assert device.calls == ["synchronize", "unmap", "unmap", "free"]


@pytest.mark.parametrize("call", ["reserve", "import_descriptor", "map", "protect"])
def test_a_failing_call_is_typed_and_leaves_nothing_behind(call: str) -> None:
    arena = filled(FakeDevice(), 4, 2)
    device = FakeDevice()
    device.fail[call] = "OUT_OF_MEMORY"
    with pytest.raises(DeviceError, match="OUT_OF_MEMORY") as raised:
        attach_segments(device, arena.descriptors, arena.sizes)
    assert raised.value.call == call
    assert device.leaked() == {}


@pytest.mark.parametrize("call", ["create", "export", "map", "protect"])
def test_an_arena_that_cannot_grow_keeps_no_descriptor(call: str) -> None:
    device = FakeDevice()
    arena = Arena(device, 4 * GRANULARITY, segments=2)
    arena.grow(1)
    before = open_descriptors()
    device.fail[call] = "OUT_OF_MEMORY"
    with pytest.raises(DeviceError):
        arena.grow(arena.nbytes)
    assert open_descriptors() == before
    assert device.live["handles"] == 0
    del arena
    assert device.leaked() == {}


@pytest.mark.parametrize(
    "sizes", [(), (GRANULARITY,), (GRANULARITY + 1, GRANULARITY), (0, GRANULARITY)]
)
def test_segments_that_do_not_fit_their_descriptors_are_refused(sizes: tuple[int, ...]) -> None:
    arena = filled(FakeDevice(), 2, 2)
    with pytest.raises(LayoutError):
        attach_segments(FakeDevice(), arena.descriptors, sizes)


def test_a_segment_of_another_size_than_stated_is_refused() -> None:
    arena = filled(FakeDevice(), 2, 2)
    with pytest.raises(DeviceError):
        attach_segments(FakeDevice(), arena.descriptors, (GRANULARITY, 2 * GRANULARITY))


def test_an_arena_never_has_more_segments_than_a_message_carries() -> None:
    arena = Arena(FakeDevice(), 1000 * GRANULARITY, segments=900)
    assert len(arena.sizes) <= MAX_SEGMENTS


def test_a_stray_write_ends_the_writer_alone() -> None:
    arena = filled(FakeDevice(), 1, 1)
    before = arena.tensor.clone()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        mapping = attach_segments(FakeDevice(), arena.descriptors, arena.sizes)
        mapping.tensor()[3] = 77
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV
    assert torch.equal(arena.tensor, before)


def test_a_holder_of_the_descriptor_can_map_it_writable() -> None:
    # Not a promise but a limit that the documentation states; the fingerprint is for this.
    arena = filled(FakeDevice(), 1, 1)
    hostile = attach_segments(FakeDevice(), arena.descriptors, arena.sizes, writable=True)
    hostile.tensor()[3] = 77
    assert arena.tensor[3] == 77


def test_a_forked_child_never_undoes_its_parents_mapping() -> None:
    arena = filled(FakeDevice(), 1, 1)
    mapping = attach_segments(FakeDevice(), arena.descriptors, arena.sizes)
    base = mapping.tensor()
    child = os.fork()
    if child == 0:
        before = list(mapping.device.calls)  # type: ignore[attr-defined]
        device = mapping.device
        del base, mapping
        gc.collect()
        os._exit(0 if device.calls == before else 1)  # type: ignore[attr-defined]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert int(base[3]) == 3
