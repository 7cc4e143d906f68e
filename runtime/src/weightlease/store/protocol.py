"""The roles around a store: who gives leases, who makes artifacts, and what a maker writes to.

`LocalStore` and `AgentStore` both are a `HostWeightStore`; one conformance suite runs on both.
A deadline bounds lock acquisition and waiting for another builder; it never cancels a producer
that has begun, a validation or a publication.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from weightlease.identity import WeightArtifactIdentity
from weightlease.policy import Validation
from weightlease.reports import CleanupResult, DomainInspection, StoreResult

Buffer: TypeAlias = bytes | bytearray | memoryview


class TensorSpec(msgspec.Struct, frozen=True):
    """One tensor of a file that the writer lays out; `dtype` is a safetensors name (`BF16`)."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class FileWriter(Protocol):
    """A file of declared size, written front to back and hashed on the way."""

    def write(self, data: Buffer) -> None:
        """Append bytes.

        Raises:
            WeightLeaseError: more bytes than declared, or the store failed.

        """


class TensorFileWriter(Protocol):
    """A safetensors file whose header the writer makes; tensors come in declared order."""

    def write(self, name: str, data: Buffer) -> None:
        """Append bytes of tensor `name`, the current or the next one in declared order."""


class ArtifactWriter(Protocol):
    """Where a producer puts an artifact; readers see nothing before the store publishes."""

    def payload(self, name: str, size: int, sha256: str = "") -> AbstractContextManager[FileWriter]:
        """A verbatim safetensors file of `size` bytes; its header is parsed and checked on the way.

        A non-empty `sha256` is what the source says of it: another digest is `checksum_mismatch`.
        """

    def tensors(
        self, name: str, specs: tuple[TensorSpec, ...]
    ) -> AbstractContextManager[TensorFileWriter]:
        """A safetensors file laid out from `specs`, in that order."""

    def asset(self, path: str, size: int, sha256: str = "") -> AbstractContextManager[FileWriter]:
        """A file without tensors, at `path` relative to the component."""


@runtime_checkable
class PatientWriter(Protocol):
    """A writer that gives up on a producer which is silent for long between two files."""

    def keep_alive(self) -> None:
        """Say that the next file is on its way; cheap, to be called every few seconds.

        Raises:
            WeightLeaseError: the publication has ended meanwhile.

        """


class ProductionMetadata(msgspec.Struct, frozen=True):
    """What a producer says of its output; assets are added by the store."""

    producer_schema: str
    restorer_schema: str
    format_metadata: dict[str, Any] = {}


class WeightProducer(Protocol):
    """Makes one exact artifact, synchronously, or raises."""

    @property
    def identity(self) -> WeightArtifactIdentity:
        """What `produce` makes."""

    @property
    def total_bytes(self) -> int:
        """Upper bound of everything `produce` writes, payload and assets, in bytes."""

    def produce(self, writer: ArtifactWriter) -> ProductionMetadata:
        """Write everything; an exception publishes nothing."""


class LookupPhase(StrEnum):
    """When a producer may run: before any model is loaded, or only on a finished one."""

    PRE_LOAD_SAFE = "pre_load_safe"
    POST_LOAD_ONLY = "post_load_only"


class CoordinationScope(StrEnum):
    """Who takes part in one build; only one process is supported."""

    SINGLE_PROCESS = "single_process"
    GROUP_COHORT = "group_cohort"
    ARTIFACT_BUNDLE = "artifact_bundle"


class PhasedProducer(WeightProducer, Protocol):
    """A producer that a `HostWeightRuntime` may be given."""

    @property
    def lookup_phase(self) -> LookupPhase:
        """When it may run."""

    @property
    def coordination(self) -> CoordinationScope:
        """Who takes part."""


class HostWeightStore(Protocol):
    """Exact artifact access."""

    def lookup(
        self,
        identity: WeightArtifactIdentity,
        *,
        validation: Validation = Validation.MANIFEST_AND_METADATA,
        timeout: float | None = None,
    ) -> StoreResult:
        """A lease on exactly `identity`, a miss, or a typed failure; never another artifact."""

    def get_or_build(
        self,
        producer: WeightProducer,
        *,
        validation: Validation = Validation.MANIFEST_AND_METADATA,
        timeout: float | None = None,
    ) -> StoreResult:
        """A lease, after building at most once per key and host, whoever asks."""

    def inspect(self) -> DomainInspection:
        """What the store holds at this instant; changes nothing."""

    def cleanup(self, key: str) -> CleanupResult:
        """Remove one artifact if nobody leases or builds it; never waits."""
