"""The bytes of a CPU tensor without a copy, and the same values in another dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.lease_tensors import torch_dtype

if TYPE_CHECKING:
    import torch


def flat_bytes(tensor: torch.Tensor) -> memoryview:
    """Memory of a contiguous CPU tensor as flat bytes; it lives as long as the view."""
    import torch

    flat = tensor.detach().reshape(-1)
    if flat.numel() == 0:
        return memoryview(b"")
    return flat.view(torch.uint8).numpy().data


def cast(data: memoryview, source: str, target: str) -> memoryview:
    """`data` of safetensors dtype `source` as `target`, rounded to nearest even.

    Raises:
        WeightLeaseError: unsupported; torch is missing, or has one of the dtypes not.

    """
    known, wanted = torch_dtype(source), torch_dtype(target)
    if known is None or wanted is None:
        raise WeightLeaseError.of(
            Stage.PRODUCTION,
            FailureCode.UNSUPPORTED,
            f"this torch cannot cast {source} to {target}",
        )
    import torch

    return flat_bytes(torch.frombuffer(data, dtype=known).to(wanted))
