"""Real architectures of diffusers and transformers at reduced depth, loaded canonically in BF16."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan, Flux2Transformer2DModel, WanTransformer3DModel
from diffusers.models.transformers.transformer_minimax_h3 import MiniMaxH3Transformer3DModel
from transformers import UMT5Config, UMT5EncoderModel

from weightlease.restore import FinalLayoutModelContract
from weightlease.restore.models import (
    flux2_klein,
    minimax_h3,
    wan_text_encoder,
    wan_transformer,
    wan_vae,
)

BF16 = torch.bfloat16


@dataclass(frozen=True)
class RealModel:
    """`fresh` builds it with random weights, `call` runs it, `dtype` is what it is loaded as."""

    contract: FinalLayoutModelContract
    fresh: Callable[[], Any]
    call: Callable[[Any], torch.Tensor]
    dtype: torch.dtype = BF16

    def canonical(self, folder: Path) -> torch.nn.Module:
        """Saved in float32 and loaded by the library's own loader."""
        torch.manual_seed(0)
        built = self.fresh()
        built.save_pretrained(folder)
        loaded: torch.nn.Module = type(built).from_pretrained(folder, torch_dtype=self.dtype)
        return loaded.eval().requires_grad_(requires_grad=False)

    def skeleton(self) -> torch.nn.Module:
        """The same architecture on `meta`."""
        with torch.device("meta"):
            model: torch.nn.Module = self.fresh()
        return model.eval()


def _wan() -> Any:
    return WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=24,
        in_channels=4,
        out_channels=4,
        text_dim=16,
        freq_dim=32,
        ffn_dim=64,
        num_layers=2,
        rope_max_seq_len=32,
    )


def _call_wan(model: Any) -> torch.Tensor:
    torch.manual_seed(1)
    out: torch.Tensor = model(
        hidden_states=torch.randn(1, 4, 2, 8, 8, dtype=BF16),
        timestep=torch.tensor([500]),
        encoder_hidden_states=torch.randn(1, 6, 16, dtype=BF16),
        return_dict=False,
    )[0]
    return out


def _flux() -> Any:
    return Flux2Transformer2DModel(
        num_layers=2,
        num_single_layers=3,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        timestep_guidance_channels=32,
        in_channels=16,
        axes_dims_rope=(4, 4, 4, 4),
    )


def _call_flux(model: Any) -> torch.Tensor:
    torch.manual_seed(1)
    out: torch.Tensor = model(
        hidden_states=torch.randn(1, 4, 16, dtype=BF16),
        encoder_hidden_states=torch.randn(1, 3, 32, dtype=BF16),
        timestep=torch.tensor([0.5], dtype=BF16),
        guidance=torch.tensor([3.5], dtype=BF16),
        img_ids=torch.zeros(1, 4, 4),
        txt_ids=torch.zeros(1, 3, 4),
        return_dict=False,
    )[0]
    return out


def _h3() -> Any:
    return MiniMaxH3Transformer3DModel(
        num_attention_heads=2,
        attention_head_dim=128,
        hidden_size=64,
        num_layers=2,
        num_refiner_layers=1,
        ffn_dim=96,
        in_channels=4,
        audio_in_channels=6,
        text_dim=32,
        freq_dim=32,
        time_embed_hidden_dim=64,
        time_embed_dim=32,
    )


def _call_h3(model: Any) -> torch.Tensor:
    torch.manual_seed(1)
    video, audio, text = 4, 2, 3
    rows = video + audio + text
    out: torch.Tensor = model(
        hidden_states=torch.randn(1, video, 16, dtype=BF16),
        audio_hidden_states=torch.randn(1, audio, 6, dtype=BF16),
        encoder_hidden_states=torch.randn(1, text, 32, dtype=BF16),
        timestep=torch.tensor([0.25]),
        timestep_indices=torch.zeros(rows, dtype=torch.long),
        token_tags=torch.tensor([0] * video + [2] * audio + [1] * text),
        position_ids=torch.arange(3 * rows).reshape(rows, 3),
        video_indices=torch.arange(video),
        audio_indices=torch.arange(video, video + audio),
        text_indices=torch.arange(video + audio, rows),
        return_dict=False,
    )[0]
    return out


def _encoder() -> Any:
    config = UMT5Config(vocab_size=64, d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2)
    return UMT5EncoderModel(config)


def _call_encoder(model: Any) -> torch.Tensor:
    out: torch.Tensor = model(torch.arange(7).reshape(1, 7)).last_hidden_state
    return out


def _vae() -> Any:
    return AutoencoderKLWan(
        base_dim=8, z_dim=4, dim_mult=[1, 2], num_res_blocks=1, temperal_downsample=[False]
    )


def _call_vae(model: Any) -> torch.Tensor:
    torch.manual_seed(1)
    out: torch.Tensor = model.decode(torch.randn(1, 4, 1, 4, 4), return_dict=False)[0]
    return out


REAL_MODELS = {
    "wan-transformer": RealModel(wan_transformer, _wan, _call_wan),
    "wan-text-encoder": RealModel(wan_text_encoder, _encoder, _call_encoder),
    "wan-vae": RealModel(wan_vae, _vae, _call_vae, torch.float32),
    "flux2-klein": RealModel(flux2_klein(2, 3), _flux, _call_flux),
    "minimax-h3": RealModel(minimax_h3(2, 1), _h3, _call_h3),
}

# progress bars of loaders are no test output
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
