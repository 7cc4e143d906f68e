"""What is lent: Wan 2.1 1.3B's transformer at full size, or one buffer of many GiB."""

from __future__ import annotations

import torch
from torch import nn

from weightlease.gpu import WeightCacheKey

# transformer/config.json of Wan-AI/Wan2.1-T2V-1.3B-Diffusers
WAN = {
    "attention_head_dim": 128,
    "cross_attn_norm": True,
    "eps": 1e-06,
    "ffn_dim": 8960,
    "freq_dim": 256,
    "in_channels": 16,
    "num_attention_heads": 12,
    "num_layers": 30,
    "out_channels": 16,
    "patch_size": (1, 2, 2),
    "qk_norm": "rms_norm_across_heads",
    "rope_max_seq_len": 1024,
    "text_dim": 4096,
}


class Blob(nn.Module):
    """One buffer of a size in GiB."""

    def __init__(self, gib: int) -> None:
        super().__init__()
        self.register_buffer("blob", torch.empty(gib << 30, dtype=torch.uint8))


def key_of(kind: str) -> WeightCacheKey:
    """What the model of a kind is called."""
    return WeightCacheKey("random-1", kind, "full-size", "bfloat16", "1")


def build(kind: str) -> nn.Module:
    """The module of a kind, on the default device."""
    if kind == "wan":
        from diffusers import WanTransformer3DModel
        from diffusers.utils import logging

        # It would warn at each build that a cast is not how its own loader casts.
        logging.set_verbosity_error()
        model: nn.Module = WanTransformer3DModel(**WAN).to(torch.bfloat16)
        return model
    return Blob(int(kind))
