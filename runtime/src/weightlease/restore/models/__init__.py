"""Contracts of model implementations that are published and restored as final layouts."""

from weightlease.restore.models.flux2_klein import flux2_klein
from weightlease.restore.models.minimax_h3 import minimax_h3
from weightlease.restore.models.wan import wan_text_encoder, wan_transformer, wan_vae

__all__ = ["flux2_klein", "minimax_h3", "wan_text_encoder", "wan_transformer", "wan_vae"]
