"""A model of some 100 MB, the same in every process; its key and its input."""

from __future__ import annotations

import torch
from torch import nn

from weightlease.gpu import WeightCacheKey

WIDTH = 1024
DEPTH = 24
KEY = WeightCacheKey("seed-5", "tower", f"{WIDTH}x{DEPTH}", "float32", "1")


class Tower(nn.Module):
    """Linear layers, a tie, and a buffer that is not persistent."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.last = nn.Linear(WIDTH, WIDTH, bias=False)
        self.last.weight = self.layers[0].weight  # type: ignore[assignment]
        self.register_buffer("scale", torch.ones(WIDTH), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            inputs = torch.tanh(layer(inputs)) * self.scale
        result: torch.Tensor = self.last(inputs)
        return result


def loaded() -> Tower:
    """The model with its weights, on the GPU."""
    torch.manual_seed(5)
    return Tower().eval().cuda()


def given() -> torch.Tensor:
    """One input."""
    return torch.linspace(-1, 1, WIDTH, device="cuda").expand(4, WIDTH)
