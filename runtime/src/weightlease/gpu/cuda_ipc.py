"""Live torch tensors lent through legacy CUDA IPC: nothing moves, the donor outlives its guests.

    [{"handle", "nbytes", "offset", "counter", "counter_offset", "event", "event_sync",
      "blocks": [[<layout block>, <its offset in this storage>], …]}, …]     handles in hex

One entry per storage that registered tensors lie in, exported anew for every consumer: torch pairs
one export with one import in its reference counts, and one export given to two consumers would free
memory under the second. The donor holds its tensors all the while, so counts never decide.
A handle opens the whole allocation it lies in, neighbours included, for reading and writing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec
import torch

from weightlease.gpu.errors import DeviceError, LayoutError
from weightlease.gpu.layout import ITEM_SIZE, MAX_BYTES, ModelLayout
from weightlease.gpu.registered import DTYPES, Span

MAX_HANDLE = 512


class SharedStorage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One allocation, exported for one consumer; sizes and offsets in bytes, handles in hex."""

    handle: str
    nbytes: int
    offset: int
    counter: str
    counter_offset: int
    event: str
    event_sync: bool
    blocks: tuple[tuple[int, int], ...]


class StorageTransport(Protocol):
    """How one live storage gets from one process into another."""

    def share(self, storage: torch.UntypedStorage) -> SharedStorage:
        """A fresh export, without blocks."""

    def open(self, shared: SharedStorage, device: torch.device) -> torch.UntypedStorage:
        """The storage of another process; call once for each export."""


class CudaIpc:
    """torch's own export and import of storages, whose arguments are plain values."""

    def share(self, storage: torch.UntypedStorage) -> SharedStorage:
        exporting: Any = storage
        try:
            _, handle, nbytes, offset, counter, counter_offset, event, sync = (
                exporting._share_cuda_()
            )
        except RuntimeError as error:
            raise DeviceError(
                "_share_cuda_",
                str(error).splitlines()[0],
                "legacy IPC exports plain cudaMalloc memory only; use the vmm transport",
            ) from error
        return SharedStorage(
            handle.hex(), nbytes, offset, counter.hex(), counter_offset, event.hex(), sync, ()
        )

    def open(self, shared: SharedStorage, device: torch.device) -> torch.UntypedStorage:
        kind: Any = torch.UntypedStorage
        try:
            opened: torch.UntypedStorage = kind._new_shared_cuda(  # noqa: SLF001 - see share
                device.index,
                bytes.fromhex(shared.handle),
                shared.nbytes,
                shared.offset,
                bytes.fromhex(shared.counter),
                shared.counter_offset,
                bytes.fromhex(shared.event),
                shared.event_sync,
            )
        except RuntimeError as error:
            raise DeviceError(
                "_new_shared_cuda",
                str(error).splitlines()[0],
                "both sides need one IPC namespace, one /dev/shm and a living donor",
            ) from error
        return opened


def export_storages(transport: StorageTransport, spans: Sequence[Span]) -> bytes:
    """A fresh export of every storage that `spans`, the blocks in order, lie in, as JSON."""
    storages: dict[int, tuple[torch.UntypedStorage, list[tuple[int, int]]]] = {}
    for number, span in enumerate(spans):
        if span.end == span.begin:
            continue
        storage = span.tensor.untyped_storage()
        identity = storage._cdata  # noqa: SLF001 - torch's identity of a storage
        storages.setdefault(identity, (storage, []))[1].append((number, span.begin))
    shared = [
        msgspec.structs.replace(transport.share(storage), blocks=tuple(blocks))
        for storage, blocks in storages.values()
    ]
    return msgspec.json.encode(shared)


_decoder = msgspec.json.Decoder(tuple[SharedStorage, ...], strict=True)


def decode_storages(data: bytes, layout: ModelLayout) -> tuple[SharedStorage, ...]:
    """What a donor exported, checked against the layout that it sent.

    Raises:
        LayoutError: handles, sizes or blocks that cannot be.

    """
    try:
        exported = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LayoutError(f"malformed allocations: {error}") from error
    placed: list[int] = []
    for shared in exported:
        for handle in (shared.handle, shared.counter, shared.event):
            _require_hex(handle)
        numbers = (shared.nbytes, shared.offset, shared.counter_offset)
        if not all(0 <= number <= MAX_BYTES for number in numbers):
            raise LayoutError(f"an allocation of {shared.nbytes} bytes is out of range")
        placed += _blocks_inside(shared, layout)
    wanted = [number for number, block in enumerate(layout.blocks) if block.nbytes]
    if sorted(placed) != wanted:
        raise LayoutError(f"{len(placed)} blocks were exported for the layout's {len(wanted)}")
    return exported


def _require_hex(handle: str) -> None:
    try:
        size = len(bytes.fromhex(handle))
    except ValueError as error:
        raise LayoutError(f"handle {handle[:40]!r} is not hexadecimal") from error
    if size > MAX_HANDLE:
        raise LayoutError(f"a handle of {size} bytes exceeds {MAX_HANDLE}")


def _blocks_inside(shared: SharedStorage, layout: ModelLayout) -> Iterator[int]:
    for number, offset in shared.blocks:
        if not 0 <= number < len(layout.blocks) or offset < 0:
            raise LayoutError(f"block {number} at {offset} is none")
        if offset + layout.blocks[number].nbytes > shared.nbytes:
            raise LayoutError(f"block {number} ends behind its allocation")
        yield number


def storage_views(
    layout: ModelLayout,
    exported: Sequence[SharedStorage],
    storages: Sequence[torch.UntypedStorage],
    device: torch.device,
) -> Iterator[torch.Tensor]:
    """One view per tensor of the layout, in its order."""
    home = {
        number: (storage, offset)
        for shared, storage in zip(exported, storages, strict=True)
        for number, offset in shared.blocks
    }
    for tensor in layout.tensors:
        dtype = DTYPES[tensor.dtype]
        empty = torch.empty(0, dtype=dtype, device=device)
        if not layout.blocks[tensor.block].nbytes:
            yield empty.as_strided(tensor.shape, tensor.stride)
            continue
        storage, offset = home[tensor.block]
        start = (offset + tensor.shift) // ITEM_SIZE[tensor.dtype]
        yield empty.set_(storage, start, tensor.shape, tensor.stride)
