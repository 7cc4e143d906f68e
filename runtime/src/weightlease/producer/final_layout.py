"""Final-layout producers: what a finished CPU model holds, as one artifact. POST_LOAD_ONLY.

    model-00001-of-0000n.safetensors   tensors by descending element size, then by name

Wide elements first keep every tensor aligned to its own element without a hole, so a restore needs
no copy. How many files there are changes no content digest. The model is read and never changed.
Each representation has a producer, a spec and schemas of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.identity import WeightArtifactIdentity
from weightlease.manifest import TensorKind
from weightlease.restore.context import (
    FinalLayoutArtifactSpec,
    FinalLayoutContext,
    format_metadata,
)
from weightlease.restore.ownership import Ownership, Target
from weightlease.restore.representation import (
    BFloat16PreservingFloat32,
    Float8Scheme,
    Float8WithGeneratedScales,
)
from weightlease.restore.tensor_bytes import flat_bytes
from weightlease.restore.violation import ContractViolation, Violation
from weightlease.safetensors_format import DTYPES, layout_header
from weightlease.store.manifest_builder import SEMANTICS_FIELD
from weightlease.store.protocol import (
    ArtifactWriter,
    CoordinationScope,
    LookupPhase,
    ProductionMetadata,
    TensorSpec,
)

if TYPE_CHECKING:
    import torch

SHARD_BYTES = 5 * 1024**3
_STORED_NAME = {torch_name: name for name, (_, torch_name) in DTYPES.items() if torch_name}

# Versions of everything that decides a byte or a name of this artifact; see restore.context.
FINAL_LAYOUT_BF16 = FinalLayoutArtifactSpec(
    policy=BFloat16PreservingFloat32(),
    layout_name="final-layout",
    producer_id="weightlease.final-layout-bf16",
    version="1",
    manifest_schema="weightlease.final-layout-manifest-v1",
    restorer_schema="weightlease.final-layout-restorer-v1",
    abi={
        "artifact_identity": "weightlease.final-layout-identity-v1",
        "model_contract": "weightlease.final-layout-model-v1",
        "producer": "weightlease.final-layout-bf16-v1",
        "representation_policy": "weightlease.bf16-preserved-fp32-v1",
        "restorer": "weightlease.final-layout-restorer-v1",
        "source_identity": "weightlease.prepared-source-v1",
        "tensor_contract": "weightlease.tensor-ownership-v1",
    },
)


def _float8(scheme: Float8Scheme) -> FinalLayoutArtifactSpec:
    name = f"weightlease.final-layout-fp8-{scheme.replace('_', '-')}"
    return FinalLayoutArtifactSpec(
        policy=Float8WithGeneratedScales(scheme),
        layout_name="final-layout",
        producer_id=name,
        version="1",
        manifest_schema="weightlease.final-layout-fp8-manifest-v1",
        restorer_schema="weightlease.final-layout-fp8-restorer-v1",
        abi=FINAL_LAYOUT_BF16.abi
        | {
            "producer": f"{name}-v1",
            "representation_policy": "weightlease.fp8-e4m3-generated-scales-v1",
            "restorer": "weightlease.final-layout-fp8-restorer-v1",
        },
    )


FINAL_LAYOUT_FLOAT8 = {scheme: _float8(scheme) for scheme in Float8Scheme}


class _FinalLayoutProducer:
    """Publishes one finished CPU model, in one process per tensor-parallel coordinate."""

    specs: ClassVar[tuple[FinalLayoutArtifactSpec, ...]]
    lookup_phase = LookupPhase.POST_LOAD_ONLY
    coordination = CoordinationScope.SINGLE_PROCESS

    def __init__(
        self,
        context: FinalLayoutContext,
        model: torch.nn.Module,
        *,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        """Take `model` as it is; whether it fits is checked when it is produced.

        Raises:
            WeightLeaseError: producer_unsupported; the context is of another producer.

        """
        if context.spec.producer not in [spec.producer for spec in self.specs]:
            raise WeightLeaseError.of(
                Stage.PRODUCTION,
                FailureCode.PRODUCER_UNSUPPORTED,
                f"this producer makes {', '.join(spec.producer_id for spec in self.specs)}, the "
                f"context names {context.spec.producer_id!r}",
            )
        self._context = context
        self._model = model
        self._shard_bytes = shard_bytes

    @property
    def identity(self) -> WeightArtifactIdentity:
        """The context's identity."""
        return self._context.identity

    @property
    def total_bytes(self) -> int:
        """Size of all payload files, in bytes.

        Raises:
            WeightLeaseError: producer_failed; the model is not what the context describes.

        """
        total = 0
        for _, specs in self._files(self._checked()):
            header, layout = layout_header(specs)
            total += len(header) + sum(tensor.end - tensor.start for tensor in layout.tensors)
        return total

    def produce(self, writer: ArtifactWriter) -> ProductionMetadata:
        """Write the model's tensors.

        Raises:
            WeightLeaseError: producer_failed, whose details name the violation; what the store
                found wrong.

        """
        ownership = self._checked()
        targets = ownership.by_name()
        for file_name, specs in self._files(ownership):
            with writer.tensors(file_name, specs) as file:
                for spec in specs:
                    file.write(spec.name, flat_bytes(_value(targets[spec.name])))
        self._require_source()
        metadata = format_metadata(self._context, ownership)
        metadata[SEMANTICS_FIELD] = {
            target.name: [str(target.kind), target.role]
            for target in ownership.targets
            if (target.kind, target.role) != (TensorKind.PARAMETER, "weight")
        }
        schemas = self._context.spec
        return ProductionMetadata(schemas.manifest_schema, schemas.restorer_schema, metadata)

    def _checked(self) -> Ownership:
        self._require_source()
        try:
            ownership = self._context.owned_by(self._model)
            self._require_final(ownership)
        except ContractViolation as violation:
            raise _failed(violation) from violation
        return ownership

    def _require_final(self, ownership: Ownership) -> None:
        if ownership.digest != self._context.ownership_sha256:
            raise ContractViolation(
                Violation.TENSOR_CONTRACT_CHANGED,
                "the model owns other tensors than the skeleton that the identity was made from",
            )
        for target in ownership.targets:
            value = _value(target)
            if value.device.type != "cpu" or str(value.dtype) != target.dtype:
                raise ContractViolation(
                    Violation.TENSOR_UNSUPPORTED,
                    f"tensor {target.name!r} is {value.dtype} on {value.device} and must be "
                    f"{target.dtype} on cpu: only a finished CPU model is published",
                    tensor=target.name,
                )
        try:
            self._context.contract.validate(self._model)
        except ValueError as error:
            raise ContractViolation(Violation.MODEL_CONTRACT_UNSUPPORTED, str(error)) from error

    def _require_source(self) -> None:
        self._context.source.require_unchanged()

    def _files(self, ownership: Ownership) -> Iterator[tuple[str, tuple[TensorSpec, ...]]]:
        shards = list(_shards(ownership, self._shard_bytes))
        for number, specs in enumerate(shards, start=1):
            yield f"model-{number:05d}-of-{len(shards):05d}.safetensors", specs


class FinalLayoutBF16Producer(_FinalLayoutProducer):
    """BF16 with what the model's contract preserves in float32."""

    specs = (FINAL_LAYOUT_BF16,)


class FinalLayoutFloat8Producer(_FinalLayoutProducer):
    """FP8 (e4m3) weights with generated scales, per tensor or per block; see `restore.float8`."""

    specs = tuple(FINAL_LAYOUT_FLOAT8.values())


def _shards(ownership: Ownership, limit: int) -> Iterator[tuple[TensorSpec, ...]]:
    ordered = sorted(
        ownership.targets, key=lambda target: (-_value(target).element_size(), target.name)
    )
    shard: list[TensorSpec] = []
    size = 0
    for target in ordered:
        nbytes = _value(target).nbytes
        if shard and size + nbytes > limit:
            yield tuple(shard)
            shard, size = [], 0
        shard.append(TensorSpec(target.name, _STORED_NAME[target.dtype], target.shape))
        size += nbytes
    yield tuple(shard)


def _value(target: Target) -> torch.Tensor:
    tensor = target.slots[0].tensor
    if tensor is None:
        raise ContractViolation(
            Violation.TENSOR_CONTRACT_CHANGED, f"tensor {target.name!r} vanished"
        )
    return tensor


def _failed(violation: ContractViolation) -> WeightLeaseError:
    return WeightLeaseError.of(
        Stage.PRODUCTION,
        FailureCode.PRODUCER_FAILED,
        violation.failure.message,
        **violation.failure.details,
    )
