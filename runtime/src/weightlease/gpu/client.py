"""The consumer's side: a model built on meta, attached to a donor's weights for a `with` block."""

from __future__ import annotations

import gc
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from weightlease.errors import Failure, FailureCode, ProtocolError
from weightlease.gpu import channel
from weightlease.gpu.arena import attach_segments
from weightlease.gpu.attachment import Attachment, ModuleT, Region, arena_region
from weightlease.gpu.bind import arena_views, registered_on_meta
from weightlease.gpu.channel import PROTOCOL_VERSION, Answer, Ask, Granted
from weightlease.gpu.cuda_ipc import CudaIpc, StorageTransport, decode_storages, storage_views
from weightlease.gpu.device import Device
from weightlease.gpu.errors import (
    DeviceMismatchError,
    DonorUnavailableError,
    GpuError,
    KeyMismatchError,
    LayoutError,
    UnsupportedError,
)
from weightlease.gpu.key import WeightCacheKey
from weightlease.gpu.layout import ModelLayout, decode_blocks
from weightlease.gpu.lending import CUDA_IPC, VMM
from weightlease.gpu.registered import Registry
from weightlease.gpu.support import require_module

DEADLINE_SECONDS = 30.0


@dataclass
class _Lent:
    """A grant before it is used: the connection is the lease, the descriptors are ours to close."""

    connection: socket.socket
    granted: Granted
    layout: ModelLayout
    fds: list[int]


class WeightCacheClient:
    """Attaches models to the weights of one donor; may be used again and again, by many threads.

    `device` is a torch device or its name; the GPU behind it must be the donor's, by its UUID.
    """

    def __init__(
        self,
        socket_path: str | os.PathLike[str],
        key: WeightCacheKey,
        device: Device | torch.device | str = "cuda",
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
        storage_transport: StorageTransport | None = None,
    ) -> None:
        self._path = os.fspath(socket_path)
        self._key = key
        self._device = _device(device)
        self._deadline = deadline_seconds
        self._storages = storage_transport or CudaIpc()

    @contextmanager
    def load_model(self, factory: Callable[[], ModuleT]) -> Iterator[Attachment[ModuleT]]:
        """A model from `factory`, on the donor's weights, until the block ends.

        `factory` builds the module and reads no weights; it runs under a meta device context, so
        constants that are not registered must be made outside it. The module is put into eval mode.

        Raises:
            GpuError: no donor, another key, GPU or layout, or something unsupported; nothing falls
                back to a disk.
            LiveTensorsError: at the end, tensors live on outside; they stay valid.

        """
        with self.attach(factory) as attached:
            yield attached

    def attach(self, factory: Callable[[], ModuleT]) -> Attachment[ModuleT]:
        """The same without a block; `detach()` it, or enter it.

        The donor answers while the factory builds.
        """
        connection = self._ask()
        lent: _Lent | None = None
        try:
            started = time.perf_counter()
            model = build_on_meta(factory)
            constructed = time.perf_counter()
            lent = self._receive(connection)
            with _collector_paused():
                found = registered_on_meta(model, lent.layout)
                attached = self._bind(lent, model, found)
        except BaseException:
            if lent is not None:
                channel.close_descriptors(lent.fds)
            connection.close()
            raise
        attached.donor = lent.granted.donor
        attached.construct_seconds = constructed - started
        return attached

    def _ask(self) -> socket.socket:
        """Connect and send the request."""
        channel.require_private_directory(self._path)
        channel.require_private_socket(self._path)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with self._reaching_donor():
                connection.settimeout(self._deadline)
                connection.connect(self._path)
                channel.require_same_user(connection, os.geteuid())
                ask = Ask(PROTOCOL_VERSION, self._key, self._device.uuid, str(torch.__version__))
                channel.send_message(connection, ask)
        except BaseException:
            connection.close()
            raise
        return connection

    def _receive(self, connection: socket.socket) -> _Lent:
        """Receive and check the answer; its descriptors are the caller's to close."""
        fds: list[int] = []
        try:
            with self._reaching_donor():
                answer, fds = channel.receive_message(connection, Answer, descriptors=True)
            granted = self._require_granted(answer)
            layout = _received_layout(fds)
        except BaseException:
            channel.close_descriptors(fds)
            raise
        return _Lent(connection, granted, layout, fds)

    @contextmanager
    def _reaching_donor(self) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError) as error:
            raise DonorUnavailableError(
                f"the donor at {self._path} does not answer: {error!r}"
            ) from error

    def _require_granted(self, answer: Answer) -> Granted:
        if answer.refused is not None:
            raise _refusal(answer.refused)
        granted = answer.granted
        if granted is None or answer.version != PROTOCOL_VERSION:
            raise ProtocolError("the answer is neither a grant nor a refusal of this version")
        if granted.gpu != self._device.uuid:
            raise DeviceMismatchError(
                f"the weights are on {granted.gpu[:60]}, not on {self._device.uuid}"
            )
        if granted.transport == CUDA_IPC and granted.torch != str(torch.__version__):
            raise KeyMismatchError(["torch"])
        return granted

    def _bind(self, lent: _Lent, model: ModuleT, found: Registry) -> Attachment[ModuleT]:
        if lent.granted.transport == VMM:
            return self._bind_arena(lent, model, found)
        if lent.granted.transport == CUDA_IPC:
            return self._bind_storages(lent, model, found)
        raise UnsupportedError("transport", f"{lent.granted.transport[:40]!r} is not known here")

    def _bind_arena(self, lent: _Lent, model: ModuleT, found: Registry) -> Attachment[ModuleT]:
        if sum(lent.granted.segments) != lent.layout.nbytes:
            raise LayoutError(f"segments do not add up to {lent.layout.nbytes} bytes")
        mapping = attach_segments(self._device, lent.fds, lent.granted.segments)
        channel.close_descriptors(lent.fds)
        lent.fds.clear()
        mapping.afterwards(lent.connection.close)
        base = mapping.tensor()
        region = arena_region(base, lent.layout)
        views = arena_views(lent.layout, base)
        return Attachment(self._device, model, found, lent.layout, views, [region])

    def _bind_storages(self, lent: _Lent, model: ModuleT, found: Registry) -> Attachment[ModuleT]:
        if len(lent.fds) != 1:
            raise LayoutError(f"{len(lent.fds)} descriptors came for the exported allocations")
        exported = decode_storages(channel.read_sealed(lent.fds[0]), lent.layout)
        channel.close_descriptors(lent.fds)
        lent.fds.clear()
        where = self._device.torch_device
        storages = [self._storages.open(shared, where) for shared in exported]
        layout = lent.layout
        regions = [
            Region.of(storage, _names_at(layout, shared.blocks))
            for shared, storage in zip(exported, storages, strict=True)
        ]
        views = storage_views(layout, exported, storages, where)
        attached = Attachment(self._device, model, found, layout, views, regions)
        attached.afterwards(lent.connection.close)
        return attached


def build_on_meta(factory: Callable[[], ModuleT]) -> ModuleT:
    """The factory's module, built under a meta device context and put into eval mode.

    Raises:
        UnsupportedError: it is no module.

    """
    with torch.device("meta"):
        model = factory()
    require_module(model)
    return model.eval()


@contextmanager
def _collector_paused() -> Iterator[None]:
    # Thousands of small objects are made in milliseconds, all to be kept: walking every object of
    # the process several times in between takes longer than all the rest.
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _received_layout(fds: list[int]) -> ModelLayout:
    """The layout in the first descriptor, which is closed and taken out of `fds`."""
    if not fds:
        raise ProtocolError("a grant came without its layout")
    layout = decode_blocks(channel.read_sealed(fds[0]))
    os.close(fds.pop(0))
    return layout


def _device(device: Device | torch.device | str) -> Device:
    if isinstance(device, str | torch.device):
        from weightlease.gpu.cuda_vmm import CudaDevice

        return CudaDevice(torch.device(device))
    return device


def _names_at(
    layout: ModelLayout, blocks: Sequence[tuple[int, int]]
) -> Callable[[int], Sequence[str]]:
    """Names of the tensors at a byte of a storage that holds `blocks` at their offsets."""

    def names(offset: int) -> Sequence[str]:
        for number, begin in blocks:
            block = layout.blocks[number]
            if begin <= offset < begin + block.nbytes:
                start = block.offset + offset - begin
                return sorted(layout.names_in(start, start + 1))[:1]
        return ()

    return names


def _refusal(failure: Failure) -> GpuError:
    """A donor's refusal as the error that it was there."""
    fields = failure.details.get("fields")
    if isinstance(fields, list):
        return KeyMismatchError([str(field)[:100] for field in fields])
    if failure.code is FailureCode.DOMAIN_UNAVAILABLE:
        return DonorUnavailableError(failure.message)
    if failure.code is FailureCode.IDENTITY_MISMATCH:
        return DeviceMismatchError(failure.message)
    return UnsupportedError(str(failure.details.get("feature", "refused")), failure.message)
