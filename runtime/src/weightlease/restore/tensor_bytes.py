"""The bytes of a CPU tensor, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def flat_bytes(tensor: torch.Tensor) -> memoryview:
    """Memory of a contiguous CPU tensor as flat bytes; it lives as long as the view."""
    import torch

    flat = tensor.detach().reshape(-1)
    if flat.numel() == 0:
        return memoryview(b"")
    return flat.view(torch.uint8).numpy().data
