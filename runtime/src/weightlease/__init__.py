"""weightlease: keep model weights warm, exact and shared on the hosts that serve them.

with weightlease.connect() as store, store.acquire("team-a/minilm") as lease:
    model.load_state_dict(lease.tensors(), assign=True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weightlease.client import AgentStore, connect
    from weightlease.lease import WeightLease
    from weightlease.store.local import LocalStore

__all__ = ["AgentStore", "LocalStore", "WeightLease", "connect"]

# Imported on first use: the operator and the producer need names and models, not the socket.
_HOMES = {
    "AgentStore": "weightlease.client",
    "LocalStore": "weightlease.store.local",
    "WeightLease": "weightlease.lease",
    "connect": "weightlease.client",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(home), name)
