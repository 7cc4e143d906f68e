"""Wan 2.1 text to video: diffusers' transformer and VAE, transformers' UMT5 encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weightlease.restore.contract import FinalLayoutModelContract
from weightlease.restore.models.checks import preserved_float32, stack_depth
from weightlease.restore.ownership import Ownership

if TYPE_CHECKING:
    import torch

# diffusers keeps these parts of the transformer in float32, wherever they stand in a name
_TRANSFORMER_FLOAT32 = (
    "scale_shift_table",
    "*.scale_shift_table",
    "*.time_embedder.*",
    "*.norm1.*",
    "*.norm2.*",
    "*.norm3.*",
)
_EVERYTHING = ("*",)


def _rotary_tables(model: torch.nn.Module) -> Mapping[str, torch.Tensor]:
    import torch

    rope: Any = model.rope
    with torch.device("cpu"):
        fresh = type(rope)(rope.attention_head_dim, rope.patch_size, rope.max_seq_len)
    return {"rope.freqs_cos": fresh.freqs_cos, "rope.freqs_sin": fresh.freqs_sin}


def _has_blocks(ownership: Ownership) -> None:
    stack_depth(ownership, "blocks")


wan_transformer = FinalLayoutModelContract(
    implementation_id="diffusers.WanTransformer3DModel",
    version="1",
    float32=_TRANSFORMER_FLOAT32,
    derive=_rotary_tables,
    structure=_has_blocks,
    validate=preserved_float32(_TRANSFORMER_FLOAT32),
)

wan_text_encoder = FinalLayoutModelContract(
    implementation_id="transformers.UMT5EncoderModel",
    version="1",
    validate=preserved_float32(()),
)

# the pipeline decodes in float32
wan_vae = FinalLayoutModelContract(
    implementation_id="diffusers.AutoencoderKLWan",
    version="1",
    float32=_EVERYTHING,
    validate=preserved_float32(_EVERYTHING),
)
