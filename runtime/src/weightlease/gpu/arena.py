"""GPU memory that processes share: whole allocations behind one range of addresses.

    address range   | segment 0 | segment 1 | … |     each segment one allocation, one descriptor

A segment's handle is given up as soon as it is mapped: from then on the mapping keeps the memory,
and so does every exported descriptor. A mapping is undone in one order: synchronise, unmap every
segment, free the range. That happens when the last tensor over it goes, never under one.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from weightlease.gpu.device import Device
from weightlease.gpu.errors import DeviceError, LayoutError

if TYPE_CHECKING:
    import torch

MAX_SEGMENTS = 56


class Mapping:
    """A range of addresses and what is mapped in it; undone when nothing refers to it any more."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self.device = device
        self.nbytes = nbytes
        self.address = device.reserve(nbytes)
        self._mapped: list[tuple[int, int]] = []
        self._after: list[Callable[[], object]] = []
        # At exit the kernel and the driver clean up; a device call then could crash the process.
        undo = (device, self.address, nbytes, self._mapped, self._after, os.getpid())
        self._undo = weakref.finalize(self, _undo, *undo)
        self._undo.atexit = False

    @property
    def mapped_bytes(self) -> int:
        """Bytes mapped so far, from the start of the range."""
        return sum(nbytes for _, nbytes in self._mapped)

    def add(self, handle: object, nbytes: int, *, writable: bool) -> None:
        """Map a handle behind what is mapped already, and give the handle up in any case.

        Raises:
            DeviceError: the device refused; nothing of this handle stays.

        """
        address = self.address + self.mapped_bytes
        try:
            self.device.map(address, handle, nbytes)
            self._mapped.append((address, nbytes))
            self.device.protect(address, nbytes, writable=writable)
        finally:
            self.device.release(handle)

    def afterwards(self, call: Callable[[], object]) -> None:
        """Call `call` once the memory is unmapped."""
        self._after.append(call)

    def abandon(self) -> None:
        """Undo it now; only where no tensor over it was ever made."""
        self._undo()

    def tensor(self) -> torch.Tensor:
        """Flat uint8 over the whole range, which holds this mapping."""
        return self.device.tensor(self.address, self.nbytes, self)


def _undo(
    device: Device,
    address: int,
    nbytes: int,
    mapped: list[tuple[int, int]],
    after: list[Callable[[], object]],
    pid: int,
) -> None:
    if os.getpid() != pid:
        return  # a forked child has no device to talk to, and its parent still uses this
    # A context that has failed refuses every call; it frees its memory when its process ends.
    with suppress(DeviceError):
        if mapped:
            device.synchronize()
        for start, size in reversed(mapped):
            device.unmap(start, size)
        device.free(address, nbytes)
    for call in after:
        call()


class Arena:
    """The owner's side: memory that is filled here and exported."""

    def __init__(self, device: Device, used: int, *, segments: int = 1) -> None:
        """Plan an arena for `used` bytes in at most `segments` allocations; allocates nothing."""
        granules = max(1, -(-used // device.granularity))
        per_segment = -(-granules // min(segments, MAX_SEGMENTS)) * device.granularity
        self.nbytes = granules * device.granularity
        self.sizes = tuple(
            min(per_segment, self.nbytes - start) for start in range(0, self.nbytes, per_segment)
        )
        self._device = device
        self._mapping = Mapping(device, self.nbytes)
        self._fds: list[int] = []
        self._base: torch.Tensor | None = None
        self._closing = weakref.finalize(self, _close_all, self._fds)

    def grow(self, end: int) -> None:
        """Allocate segments until the first `end` bytes have memory.

        Raises:
            DeviceError: the device has no more, or exports nothing.

        """
        while self._mapping.mapped_bytes < min(end, self.nbytes):
            size = self.sizes[len(self._fds)]
            handle = self._device.create(size)
            try:
                fd = self._device.export(handle)
            except BaseException:
                self._device.release(handle)
                raise
            try:
                self._mapping.add(handle, size, writable=True)
            except BaseException:
                os.close(fd)
                raise
            self._fds.append(fd)

    @property
    def grown_bytes(self) -> int:
        """Bytes that have memory, from the start."""
        return self._mapping.mapped_bytes

    @property
    def descriptors(self) -> tuple[int, ...]:
        """One descriptor per allocated segment, owned by the arena."""
        return tuple(self._fds)

    @property
    def tensor(self) -> torch.Tensor:
        """Flat uint8 over the arena; memory beyond what was grown must not be touched."""
        if self._base is None:
            self.grow(1)
            self._base = self._mapping.tensor()
        return self._base

    def close(self) -> None:
        """Close the descriptors; the memory stays while a mapping or another descriptor does."""
        self._closing()
        self._base = None


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


def attach_segments(
    device: Device, fds: Sequence[int], sizes: Sequence[int], *, writable: bool = False
) -> Mapping:
    """Map another process's segments one behind the other, read-only unless asked otherwise.

    Raises:
        LayoutError: sizes that are no segments of this device.
        DeviceError: the device refused one; everything is undone.

    """
    if not 0 < len(sizes) == len(fds) <= MAX_SEGMENTS:
        raise LayoutError(f"{len(fds)} descriptors came for {len(sizes)} segments")
    if any(size <= 0 or size % device.granularity for size in sizes):
        raise LayoutError(f"segments {list(sizes)} are no multiples of {device.granularity} bytes")
    mapping = Mapping(device, sum(sizes))
    try:
        for fd, size in zip(fds, sizes, strict=True):
            mapping.add(device.import_descriptor(fd, size), size, writable=writable)
    except BaseException:
        mapping.abandon()
        raise
    return mapping
