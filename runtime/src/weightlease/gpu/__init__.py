"""Weights in GPU memory that outlive the processes which use them.

    serve_weight_cache(model.eval(), key, socket_path, stop=stop)      one process, for long

    client = WeightCacheClient(socket_path, key, device)               any other, again and again
    with client.load_model(factory) as attached:
        output = attached.model(inputs)

Needs weightlease[gpu]; torch and CUDA are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weightlease.gpu.client import WeightCacheClient
    from weightlease.gpu.donor import serve_weight_cache
    from weightlease.gpu.key import WeightCacheKey

__all__ = ["WeightCacheClient", "WeightCacheKey", "serve_weight_cache"]

_HOMES = {
    "WeightCacheClient": "weightlease.gpu.client",
    "WeightCacheKey": "weightlease.gpu.key",
    "serve_weight_cache": "weightlease.gpu.donor",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(home), name)
