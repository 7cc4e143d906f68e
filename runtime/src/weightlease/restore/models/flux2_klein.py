"""FLUX.2-klein: two stacks of blocks, packed projections, everything in BF16.

transformer_blocks.<n>            double-stream; q, k and v apart
single_transformer_blocks.<n>     single-stream
    attn.to_qkv_mlp_proj   [3 * hidden + 2 * mlp, hidden]   q | k | v | gate | up
    attn.to_out            [hidden, hidden + mlp]           attention | mlp
"""

from __future__ import annotations

from weightlease.restore.contract import FinalLayoutModelContract
from weightlease.restore.models.checks import preserved_float32, require_depth
from weightlease.restore.ownership import Ownership

DOUBLE_BLOCKS = 5
SINGLE_BLOCKS = 20


def flux2_klein(
    double_blocks: int = DOUBLE_BLOCKS, single_blocks: int = SINGLE_BLOCKS
) -> FinalLayoutModelContract:
    """The contract of FLUX.2-klein-4B, or of the same architecture at another depth."""

    def structure(ownership: Ownership) -> None:
        require_depth(ownership, "transformer_blocks", double_blocks)
        require_depth(ownership, "single_transformer_blocks", single_blocks)
        for number in range(single_blocks):
            _require_packed(ownership, f"single_transformer_blocks.{number}.attn")
        wide = [
            target.name
            for target in ownership.targets
            if target.dtype == "torch.float32" and target.role != "float8_scale"
        ]
        if wide:
            raise ValueError(f"the base layout keeps nothing in float32, and {wide[:5]} are")

    return FinalLayoutModelContract(
        implementation_id="diffusers.Flux2Transformer2DModel.klein",
        version="1",
        structure=structure,
        validate=preserved_float32(()),
    )


def _require_packed(ownership: Ownership, attention: str) -> None:
    shapes = {
        target.name.removeprefix(f"{attention}."): target.shape
        for target in ownership.targets
        if target.name.startswith(f"{attention}.")
    }
    packed = shapes.get("to_qkv_mlp_proj.weight", ())
    out = shapes.get("to_out.weight", ())
    if len(packed) != 2 or len(out) != 2:
        raise ValueError(
            f"{attention!r} lacks a packed projection of queries, keys, values and mlp"
        )
    hidden, mlp = out[0], out[1] - out[0]
    if packed != (3 * hidden + 2 * mlp, hidden):
        raise ValueError(
            f"{attention}.to_qkv_mlp_proj has shape {packed}, and with {hidden} hidden and {mlp} "
            f"mlp features it must be {(3 * hidden + 2 * mlp, hidden)}"
        )
