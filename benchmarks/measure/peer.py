"""vllm-omni's own store, which measures itself against ours on the same files and bytes.

Its parent package imports a whole serving engine; an empty module of that name stands in for it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

from measure.artifacts import Producer, file_name
from weightlease.identity import WeightArtifactIdentity

PEER = "vllm-omni"


def peer_version() -> str:
    """The installed version."""
    return version(PEER)


def runtime() -> Any:
    """Its `host_weight_runtime` package.

    Raises:
        ModuleNotFoundError: requirements/interop.txt is not installed.

    """
    if "vllm_omni" not in sys.modules:
        found = importlib.util.find_spec("vllm_omni")
        if found is None or found.submodule_search_locations is None:
            raise ModuleNotFoundError("vllm_omni is missing; install requirements/interop.txt")
        parent = types.ModuleType("vllm_omni")
        parent.__path__ = list(found.submodule_search_locations)
        sys.modules["vllm_omni"] = parent
    return importlib.import_module("vllm_omni.host_weight_runtime")


def open_store(root: Path, storage_class: str) -> Any:
    """Its store on the domain at `root`, with its default policies."""
    hwr = runtime()
    name = "tmpfs" if storage_class == "memory" else storage_class
    domain = hwr.StorageDomainPolicy(root=root, storage_class=hwr.StorageClass(name))
    stores: Any = importlib.import_module("vllm_omni.host_weight_runtime.filesystem")
    return stores.FilesystemHostWeightStore(domain, hwr.CapacityPolicy(), hwr.IntegrityPolicy())


def their_identity(identity: WeightArtifactIdentity) -> Any:
    """Our identity as theirs."""
    return runtime().WeightArtifactIdentity.from_dict(identity.to_dict())


class PeerProducer:
    """The bytes of one of our producers for their writer, declared ordered: their quick way."""

    def __init__(self, ours: Producer) -> None:
        hwr = runtime()
        self._ours = ours
        self.spec = hwr.WeightProductionSpec(
            ours.identity.producer.producer_id,
            (their_identity(ours.identity),),
            hwr.ProductionSourceMode.CHECKPOINT_STREAM,
        )

    def produce(self, writer: Any) -> Any:
        """Write every file."""
        import torch

        # The bytes are read-only, and their writer only reads them.
        warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
        hwr = runtime()
        for number in range(self._ours.shape.files):
            specs = tuple(
                hwr.TensorWriteSpec(spec.name, spec.shape, torch.bfloat16)
                for spec in self._ours.shape.specs(number)
            )
            with writer.open_tensor_file(file_name(number), specs, ordered=True) as file:
                for spec, data in self._ours.tensors(number):
                    tensor = torch.frombuffer(data, dtype=torch.bfloat16).view(spec.shape)
                    file.write_tensor(spec.name, tensor)
        identity = self._ours.identity.producer
        return hwr.ProductionMetadata(identity.manifest_schema, identity.restorer_schema)
