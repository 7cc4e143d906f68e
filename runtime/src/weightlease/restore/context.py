"""From a request, a source and a model skeleton to one exact identity.

    source          the prepared source, with its checkpoint adapter
    component       name; ownership "parameters-and-persistent-buffers"; the model contract
    representation  the policy's name and dtype
    layout          the spec's name, coordinates, {"tensor_ownership_sha256", "loader"}
    adaptation      base, or merged adapters
    producer        id, version, sha256 of the ABI descriptor, manifest and restorer schema

The ABI descriptor is a literal of the spec: versions of every part that decides bytes or names.
Nothing is read from source code, so a rename changes no key and a change of meaning must be stated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weightlease import parallelism
from weightlease.canonical import canonical_json, sha256_hex
from weightlease.errors import IdentityError
from weightlease.identity import ComponentIdentity, ProducerIdentity, WeightArtifactIdentity
from weightlease.parallelism import Coordinates, SequenceParallel
from weightlease.restore.contract import FinalLayoutModelContract
from weightlease.restore.ownership import Ownership, collect
from weightlease.restore.representation import RepresentationPolicy
from weightlease.restore.request import FinalLayoutRequest
from weightlease.source.prepared import PreparedWeightSource

if TYPE_CHECKING:
    import torch

OWNERSHIP = "parameters-and-persistent-buffers"
_ABI_PARTS = {
    *("artifact_identity", "model_contract", "producer", "representation_policy"),
    *("restorer", "source_identity", "tensor_contract"),
}


@dataclass(frozen=True)
class FinalLayoutArtifactSpec:
    """One representation in one runtime layout, and the versions of all that makes and reads it."""

    policy: RepresentationPolicy
    layout_name: str
    producer_id: str
    version: str
    manifest_schema: str
    restorer_schema: str
    abi: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.abi.keys() != _ABI_PARTS or not all(self.abi.values()):
            raise IdentityError(f"abi must state exactly {', '.join(sorted(_ABI_PARTS))}")

    @property
    def producer(self) -> ProducerIdentity:
        """What enters an identity as its producer."""
        return ProducerIdentity(
            self.producer_id,
            self.version,
            sha256_hex(canonical_json(self.abi)),
            self.manifest_schema,
            self.restorer_schema,
        )


@dataclass(frozen=True)
class FinalLayoutContext:
    """What producer and restorer of one artifact agree on."""

    identity: WeightArtifactIdentity
    spec: FinalLayoutArtifactSpec
    contract: FinalLayoutModelContract
    ownership_sha256: str
    source: PreparedWeightSource

    @classmethod
    def of(
        cls,
        request: FinalLayoutRequest,
        source: PreparedWeightSource,
        skeleton: torch.nn.Module,
        spec: FinalLayoutArtifactSpec,
        contract: FinalLayoutModelContract,
    ) -> FinalLayoutContext:
        """Fix the identity from a CPU or meta `skeleton`, which is not changed.

        Raises:
            ContractViolation: the skeleton breaks the contract.
            IdentityError: the request is not exact, or names a dynamic adapter.

        """
        ownership = collect(skeleton, contract, spec.policy)
        digest = ownership.digest
        identity = WeightArtifactIdentity(
            schema_version=1,
            source=source.identity,
            component=ComponentIdentity(
                request.component, OWNERSHIP, {"model_contract": contract.to_dict()}
            ),
            representation=spec.policy.representation,
            layout=parallelism.layout(
                spec.layout_name,
                _coordinates(request),
                {"tensor_ownership_sha256": digest, "loader": _loader(request)},
            ),
            adaptation=parallelism.adaptation(request.merged_adapters),
            producer=spec.producer,
        )
        return cls(identity, spec, contract, digest, source)

    def owned_by(self, model: torch.nn.Module) -> Ownership:
        """What `model` owns, under this context's contract and representation.

        Raises:
            ContractViolation: the model breaks the contract.

        """
        return collect(model, self.contract, self.spec.policy)


def format_metadata(context: FinalLayoutContext, ownership: Ownership) -> dict[str, object]:
    """What the manifest says of the layout beside the tensors themselves."""
    return {
        "format": "weightlease.final-layout-v1",
        "component": context.identity.component.name,
        "tensor_count": len(ownership.targets),
        "tensor_ownership_sha256": ownership.digest,
        "ties": {
            target.name: [slot.name for slot in target.slots[1:]]
            for target in ownership.targets
            if len(target.slots) > 1
        },
    }


def _coordinates(request: FinalLayoutRequest) -> Coordinates:
    sequence = request.sequence_parallel
    return Coordinates(
        tensor=request.tensor_parallel,
        sequence=SequenceParallel(size=sequence.size, backend=sequence.backend),
        pipeline=request.pipeline_parallel,
        expert=request.expert_parallel,
    )


def _loader(request: FinalLayoutRequest) -> dict[str, str]:
    loader = request.loader
    return {
        "name": loader.name,
        "version": loader.version,
        "configuration_sha256": loader.configuration_sha256,
    }
