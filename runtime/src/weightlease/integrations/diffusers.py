"""Components of diffusers (and of transformers' models with the same two loaders) as leases.

loader = pretrained(WanTransformer3DModel, folder, source, wan_transformer, component=…, …)
with load_component(runtime, loader) as dit:
    dit.model.to("cuda")

The configuration of the folder enters the identity by its digest, the libraries by their versions.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weightlease.canonical import canonical_json, sha256_hex
from weightlease.integrations.transaction import ComponentLoader
from weightlease.restore.context import FinalLayoutArtifactSpec, FinalLayoutContext
from weightlease.restore.contract import FinalLayoutModelContract
from weightlease.restore.request import FinalLayoutRequest, LoaderIdentity
from weightlease.source.prepared import PreparedWeightSource
from weightlease.store.protocol import PhasedProducer

if TYPE_CHECKING:
    import torch

Producer = Callable[[FinalLayoutContext, "torch.nn.Module"], PhasedProducer]


def pretrained(
    model_class: Any,
    folder: str,
    source: Callable[[], PreparedWeightSource],
    contract: FinalLayoutModelContract,
    *,
    component: str,
    spec: FinalLayoutArtifactSpec,
    producer: Producer,
) -> ComponentLoader:
    """A loader of `model_class` from the component `folder`, whose files `source` pins.

    `spec` and `producer` belong together; weights are loaded in BF16 and keep what the class keeps.
    """

    def skeleton() -> torch.nn.Module:
        import torch

        with torch.device("meta"):
            model: torch.nn.Module = model_class.from_config(model_class.load_config(folder))
        return model.eval()

    def canonical() -> torch.nn.Module:
        import torch

        model: torch.nn.Module = model_class.from_pretrained(folder, torch_dtype=torch.bfloat16)
        return model.eval().requires_grad_(requires_grad=False)

    def context() -> FinalLayoutContext:
        configuration = canonical_json(dict(model_class.load_config(folder)))
        loader = LoaderIdentity(
            name=f"diffusers.{model_class.__name__}",
            version=importlib.metadata.version("diffusers"),
            configuration_sha256=sha256_hex(configuration),
        )
        request = FinalLayoutRequest(component=component, loader=loader)
        return FinalLayoutContext.of(request, source(), skeleton(), spec, contract)

    return ComponentLoader(context, skeleton, canonical, producer)
