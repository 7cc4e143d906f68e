"""vllm-omni's own store, imported without the packages that its parent package would pull in."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any


def _host_weight_runtime() -> Any:
    if "vllm_omni" not in sys.modules:
        found = importlib.util.find_spec("vllm_omni")
        assert found is not None, "requirements/interop.txt is not installed"
        assert found.submodule_search_locations is not None
        parent = types.ModuleType("vllm_omni")
        parent.__path__ = list(found.submodule_search_locations)
        sys.modules["vllm_omni"] = parent
    return importlib.import_module("vllm_omni.host_weight_runtime")


hwr = _host_weight_runtime()
FilesystemHostWeightStore: Any = importlib.import_module(
    "vllm_omni.host_weight_runtime.filesystem"
).FilesystemHostWeightStore


def open_store(root: Path, storage_class: str = "disk") -> Any:
    """Their store on the domain at `root`, with default policies."""
    domain = hwr.StorageDomainPolicy(root=root, storage_class=hwr.StorageClass(storage_class))
    return FilesystemHostWeightStore(domain, hwr.CapacityPolicy(), hwr.IntegrityPolicy())


def their_identity(identity: Any) -> Any:
    """Our identity as theirs."""
    return hwr.WeightArtifactIdentity.from_dict(identity.to_dict())
