"""MiniMax H3's transformer: BF16 but for the input projections, timestep MLP and output heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weightlease.restore.contract import FinalLayoutModelContract
from weightlease.restore.models.checks import preserved_float32, require_depth
from weightlease.restore.ownership import Ownership

if TYPE_CHECKING:
    import torch

BLOCKS = 50
REFINER_BLOCKS = 2
_FLOAT32 = ("proj_in.*", "audio_proj_in.*", "time_embedder.*", "proj_out.*", "audio_proj_out.*")


def _inverse_frequencies(model: torch.nn.Module) -> Mapping[str, torch.Tensor]:
    import torch

    rope: Any = model.rope
    config: Any = model.config
    with torch.device("cpu"):
        fresh = type(rope)(rope.rope_freq_dim, config.rope_theta)
    return {"rope.inv_freq": fresh.inv_freq}


def minimax_h3(
    blocks: int = BLOCKS, refiner_blocks: int = REFINER_BLOCKS
) -> FinalLayoutModelContract:
    """The contract of MiniMax H3, or of the same architecture at another depth."""

    def structure(ownership: Ownership) -> None:
        require_depth(ownership, "transformer_blocks", blocks)
        require_depth(ownership, "token_refiner.refiner_blocks", refiner_blocks)
        _require_mixed_precision(ownership)

    return FinalLayoutModelContract(
        implementation_id="diffusers.MiniMaxH3Transformer3DModel",
        version="1",
        float32=_FLOAT32,
        derive=_inverse_frequencies,
        structure=structure,
        validate=preserved_float32(_FLOAT32),
    )


def _require_mixed_precision(ownership: Ownership) -> None:
    wide = {target.name for target in ownership.targets if target.dtype == "torch.float32"}
    for part in _FLOAT32:
        prefix = part.removesuffix("*")
        if not any(name.startswith(prefix) for name in wide):
            raise ValueError(f"no float32 tensor is below {prefix!r}")
    if len(wide) == len(ownership.targets):
        raise ValueError("every tensor is float32; the block stack must be bfloat16")
