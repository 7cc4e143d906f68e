"""A process that holds loaded weights in GPU memory and lends them, until it is told to stop.

    check the model ─► lock the socket ─► prepare, fingerprint ─► bind: ready ─► lend … stop
                                                                                   │
    unlink the socket, admit nobody ─► wait until every consumer has gone ─► fingerprint again ◄─┘

Three fates: bytes that are no request, a peer of another user or a silent one lose their
connection; a request that cannot be granted gets a refusal; a failing device ends the donor.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import nn

from weightlease.errors import Failure, WeightLeaseError
from weightlease.gpu import channel
from weightlease.gpu.bind import give_back_cache
from weightlease.gpu.channel import PROTOCOL_VERSION, Answer, Ask, Granted
from weightlease.gpu.cuda_ipc import CudaIpc, StorageTransport
from weightlease.gpu.device import Device
from weightlease.gpu.errors import (
    DeviceMismatchError,
    DonorBusyError,
    DonorUnavailableError,
    GpuError,
    KeyMismatchError,
    PeerRefusedError,
    UnsupportedError,
)
from weightlease.gpu.fingerprint import Fingerprint, Fingerprinter, require_unchanged
from weightlease.gpu.key import WeightCacheKey
from weightlease.gpu.lending import (
    CUDA_IPC,
    VMM,
    ArenaLending,
    Lending,
    LiveLending,
    layout_memory,
    take_fingerprints,
)
from weightlease.gpu.registered import registry
from weightlease.gpu.support import (
    require_idle_inference,
    require_module,
    require_no_expandable_segments,
    require_no_mig,
    require_supported_modules,
)
from weightlease.locks import FileLock

POLL_SECONDS = 0.1
PEER_SECONDS = 10.0
MAX_CONSUMERS = 64
_BACKLOG = 64


@dataclass(frozen=True)
class DonorReport:
    """What a donor did; `fingerprint` is the first run's digest, equal at load and at the end."""

    transport: str
    nbytes: int
    granted: int
    refused: int
    fingerprint: str


def serve_weight_cache(  # noqa: PLR0913 - the document's call, and choices by keyword
    model: nn.Module,
    key: WeightCacheKey,
    socket_path: str | os.PathLike[str],
    *,
    stop: threading.Event,
    transport: str = VMM,
    device: Device | None = None,
    max_consumers: int = MAX_CONSUMERS,
    on_ready: Callable[[], object] = lambda: None,
    storage_transport: StorageTransport | None = None,
) -> DonorReport:
    """Lend `model`'s registered tensors until `stop` is set and the last consumer has gone.

    `vmm` moves the tensors into an exportable arena, which needs up to a sixth more memory
    while they move and invalidates captured graphs and saved addresses; `cuda-ipc` lends them where
    they are. `on_ready` is called once the socket answers.

    Raises:
        UnsupportedError: the model, process or GPU has a feature that is not shared.
        DonorBusyError: another donor serves this socket.
        PeerRefusedError: the socket's directory is not this user's alone.
        DeviceError: the device refused.
        WeightsChangedError: at the end, the bytes are not those of the beginning.

    """
    lent_on = device if device is not None else _device_of(model)
    _require_lendable(model, lent_on, transport)
    # another stream may still be writing the weights that are copied, fingerprinted or lent next
    lent_on.synchronize()
    with _Place(os.fspath(socket_path)) as place:
        lending: Lending
        if transport == VMM:
            lending = ArenaLending(model, lent_on)
        else:
            lending = LiveLending(model, storage_transport or CudaIpc())
        try:
            by = Fingerprinter(lent_on.torch_device)
            before = take_fingerprints(lending, by)
            give_back_cache(lent_on)
            desk = _Desk(lending, key, lent_on.uuid, max_consumers)
            try:
                _serve(place, desk, stop, on_ready)
            finally:
                desk.close()
            _require_same(lending, before, by)
            digest = before[0].digest if before else ""
            return DonorReport(transport, lending.layout.nbytes, desk.granted, desk.refused, digest)
        finally:
            lending.close()


def _require_lendable(model: nn.Module, device: Device, transport: str) -> None:
    if transport not in {VMM, CUDA_IPC}:
        raise UnsupportedError("transport", f"{transport!r} is neither {VMM!r} nor {CUDA_IPC!r}")
    require_module(model)
    require_supported_modules(model.named_modules())
    entries = registry(model).entries
    require_idle_inference(model, entries, device.torch_device)
    require_no_mig(device.torch_device)
    if transport == CUDA_IPC and device.torch_device.type == "cuda":
        require_no_expandable_segments()


def _device_of(model: nn.Module) -> Device:
    from weightlease.gpu.cuda_vmm import CudaDevice

    require_module(model)
    found = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    on_cuda = [each for each in found if each.type == "cuda"]
    if len(on_cuda) != 1:
        feature = "several_devices" if on_cuda else "cpu_tensor"
        raise UnsupportedError(
            feature, f"the model is on {sorted(map(str, found))}, not on one GPU"
        )
    return CudaDevice(on_cuda[0])


def _require_same(lending: Lending, before: Sequence[Fingerprint], by: Fingerprinter) -> None:
    for (memory, names_in), then in zip(lending.memory(), before, strict=True):
        require_unchanged(then, by.take(memory), names_in)


class _Place:
    """The socket's path: its private directory and its lock, and removal of what is stale."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> Self:
        channel.require_private_directory(self.path)
        lock = FileLock.try_acquire(f"{self.path}.lock", exclusive=True)
        if lock is None:
            raise DonorBusyError(f"another donor holds {self.path}; stop it, or take another path")
        self._lock = lock
        return self

    def listen(self) -> socket.socket:
        """Bind; replaces the socket of a donor that died, whose lock this one holds now."""
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(self.path).st_mode):
                raise PeerRefusedError(f"{self.path} exists and is no socket; remove it")
            os.unlink(self.path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # The directory is private already; the mode says so on the socket too.
            os.fchmod(listener.fileno(), 0o600)
            listener.bind(self.path)
            os.chmod(self.path, 0o600)
            listener.listen(_BACKLOG)
            listener.settimeout(POLL_SECONDS)
        except BaseException:
            listener.close()
            raise
        return listener

    def withdraw(self) -> None:
        """Unlink the socket, so that nobody waits at it."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)

    def __exit__(self, *raised: object) -> None:
        self._lock.close()


def _serve(
    place: _Place, desk: _Desk, stop: threading.Event, on_ready: Callable[[], object]
) -> None:
    listener = place.listen()
    try:
        on_ready()
        while not stop.is_set():
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                desk.receive(connection)
    finally:
        place.withdraw()
        listener.close()
        desk.drain()


class _Desk:
    """Decides on requests and keeps one connection, and thread, for each consumer."""

    def __init__(self, lending: Lending, key: WeightCacheKey, gpu: str, most: int) -> None:
        self.granted = 0
        self.refused = 0
        self._lending = lending
        self._key = key
        self._gpu = gpu
        self._most = most
        self._guard = threading.Lock()
        self._leases = 0
        self._threads: list[threading.Thread] = []
        self._layout = layout_memory(lending)
        self._donor = f"{os.getpid()}.{_start_ticks()}.{secrets.token_hex(8)}"

    def receive(self, connection: socket.socket) -> None:
        """Serve one connection on a thread of its own."""
        self._threads = [each for each in self._threads if each.is_alive()]
        # Twice as many as may lease: what only connects and waits must not keep others out.
        if len(self._threads) >= 2 * self._most:
            connection.close()
            return
        thread = threading.Thread(target=self._attend, args=(connection,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def drain(self) -> None:
        """Wait until every consumer has gone."""
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        """Give the layout's descriptor back."""
        os.close(self._layout)

    def _attend(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, EOFError, WeightLeaseError):
            connection.settimeout(PEER_SECONDS)
            channel.require_same_user(connection, os.geteuid())
            ask, _ = channel.receive_message(connection, Ask)
            if self._answer(connection, ask):
                try:
                    _wait_for_end(connection)
                finally:
                    self._count(-1)

    def _answer(self, connection: socket.socket, ask: Ask) -> bool:
        """Grant or refuse; whether the connection is a lease now."""
        counted = False
        close: list[int] = []
        try:
            require_match(ask, self._key, self._gpu, self._lending.transport)
            self._take_seat()
            counted = True
            fds, close = self._lending.descriptors()
            channel.send_message(connection, self._grant(), [self._layout, *fds])
        except GpuError as error:
            self._count(-counted)
            self._refuse(connection, error.failure)
            return False
        except BaseException:
            self._count(-counted)
            raise
        finally:
            channel.close_descriptors(close)
        with self._guard:
            self.granted += 1
        return True

    def _grant(self) -> Answer:
        lending = self._lending
        granted = Granted(
            self._donor, lending.transport, self._gpu, str(torch.__version__), lending.segments
        )
        return Answer(PROTOCOL_VERSION, granted=granted)

    def _refuse(self, connection: socket.socket, failure: Failure) -> None:
        with self._guard:
            self.refused += 1
        channel.send_message(connection, Answer(PROTOCOL_VERSION, refused=failure))

    def _take_seat(self) -> None:
        with self._guard:
            if self._leases >= self._most:
                raise DonorUnavailableError(f"{self._most} consumers, the most allowed, are there")
            self._leases += 1

    def _count(self, change: int) -> None:
        with self._guard:
            self._leases += change


def require_match(ask: Ask, key: WeightCacheKey, gpu: str, transport: str) -> None:
    """What is asked for is what is lent.

    The torch version counts for `cuda-ipc`, whose exports are torch's own; for `vmm` bytes and
    layout alone decide.

    Raises:
        GpuError: what differs.

    """
    if ask.version != PROTOCOL_VERSION:
        raise UnsupportedError("protocol", f"version {ask.version} is not {PROTOCOL_VERSION}")
    fields = key.differing(ask.key)
    if fields:
        raise KeyMismatchError(fields)
    if ask.gpu != gpu:
        raise DeviceMismatchError(f"the weights are on {gpu}, not on {ask.gpu[:60]}")
    if transport == CUDA_IPC and ask.torch != str(torch.__version__):
        raise KeyMismatchError([f"torch ({torch.__version__} there, {ask.torch[:40]} here)"])


def _wait_for_end(connection: socket.socket) -> None:
    """Until the consumer closes its end, by dying too; what it sends now is no protocol."""
    connection.settimeout(None)
    connection.recv(1)


def _start_ticks() -> str:
    state = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
    return state.rsplit(") ", 1)[1].split()[19]
