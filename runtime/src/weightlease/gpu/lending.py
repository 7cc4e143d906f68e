"""What a donor lends and how: an arena to be mapped (`vmm`), or its live tensors (`cuda-ipc`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec
import torch
from torch import nn

from weightlease.gpu.bind import move
from weightlease.gpu.channel import sealed_memory
from weightlease.gpu.cuda_ipc import StorageTransport, export_storages
from weightlease.gpu.device import Device
from weightlease.gpu.errors import DonorUnavailableError
from weightlease.gpu.fingerprint import Fingerprint, Fingerprinter, NamesIn
from weightlease.gpu.layout import ModelLayout, encode_layout, place_blocks, used_bytes
from weightlease.gpu.registered import Span, registry

VMM = "vmm"
CUDA_IPC = "cuda-ipc"
# torch keeps a record of every exported storage on the exporter's side and never frees it
MAX_EXPORTS = 65_536


class Lending(Protocol):
    """Weights that are ready to be lent."""

    transport: str
    layout: ModelLayout
    segments: tuple[int, ...]

    def descriptors(self) -> tuple[list[int], list[int]]:
        """Descriptors for one consumer after the layout's, and those to close once sent.

        Raises:
            DonorUnavailableError: no more consumers can be served.
            DeviceError: the device exports nothing.

        """

    def memory(self) -> Iterable[tuple[torch.Tensor, NamesIn]]:
        """Every run of bytes lent, flat uint8, and which tensors lie in a range of it."""

    def close(self) -> None:
        """Lend nothing any more; what is mapped elsewhere stays (vmm)."""


class ArenaLending:
    """The model's tensors in an exportable arena; it outlives the donor in every consumer."""

    transport = VMM

    def __init__(self, model: nn.Module, device: Device) -> None:
        """Move the model's tensors into an arena."""
        self._arena, self.layout = move(model, device)
        self.segments = self._arena.sizes

    def descriptors(self) -> tuple[list[int], list[int]]:
        return list(self._arena.descriptors), []

    def memory(self) -> Iterable[tuple[torch.Tensor, NamesIn]]:
        return [(self._arena.tensor, self.layout.names_in)]

    def close(self) -> None:
        self._arena.close()


class LiveLending:
    """The model's tensors where they are; every consumer gets an export of its own."""

    transport = CUDA_IPC
    segments: tuple[int, ...] = ()

    def __init__(self, model: nn.Module, transport: StorageTransport) -> None:
        """Lend the model's storages."""
        found = registry(model)
        self.layout = _placed_apart(found.layout)
        self._spans = found.spans
        self._transport = transport
        self._storages = len({span.tensor.untyped_storage().data_ptr() for span in found.spans})
        self._left = MAX_EXPORTS

    def descriptors(self) -> tuple[list[int], list[int]]:
        if self._storages > self._left:
            raise DonorUnavailableError(
                f"{MAX_EXPORTS - self._left} of {MAX_EXPORTS} exports are used up; restart the "
                "donor, or use the vmm transport, which has no such limit"
            )
        self._left -= self._storages
        fd = sealed_memory(export_storages(self._transport, self._spans))
        return [fd], [fd]

    def memory(self) -> Iterable[tuple[torch.Tensor, NamesIn]]:
        for number, span in enumerate(self._spans):
            yield _bytes_of(span), _names_of_block(self.layout, number)

    def close(self) -> None:
        self._spans = []


def _placed_apart(layout: ModelLayout) -> ModelLayout:
    """The layout with blocks placed as in an arena, which no one maps: only sizes count here."""
    blocks = place_blocks([block.nbytes for block in layout.blocks])
    return msgspec.structs.replace(layout, blocks=blocks, nbytes=max(1, used_bytes(blocks)))


def _bytes_of(span: Span) -> torch.Tensor:
    flat = torch.empty(0, dtype=torch.uint8, device=span.tensor.device)
    return flat.set_(span.tensor.untyped_storage(), span.begin, (span.end - span.begin,), (1,))


def _names_of_block(layout: ModelLayout, number: int) -> NamesIn:
    start = layout.blocks[number].offset
    return lambda begin, end: layout.names_in(start + begin, start + end)


def layout_memory(lending: Lending) -> int:
    """The layout as a sealed descriptor, the caller's to close."""
    return sealed_memory(encode_layout(lending.layout))


def take_fingerprints(lending: Lending, by: Fingerprinter) -> Sequence[Fingerprint]:
    """One fingerprint for each run of bytes that is lent."""
    return [by.take(memory) for memory, _ in lending.memory()]
