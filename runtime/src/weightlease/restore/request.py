"""What a loader asks for: typed facts that change the final layout, and nothing else.

There is no open metadata, no data-parallel coordinate, no sequence rank, no device, no transfer
mode, no registration policy and no path: none of them changes a byte of the artifact.
"""

from __future__ import annotations

import msgspec

from weightlease.errors import IdentityError
from weightlease.parallelism import Adapter, ExpertParallel, PipelineParallel, TensorParallel


class LoaderIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The code that makes the final layout, and the fingerprint of the settings it was given."""

    name: str
    version: str
    configuration_sha256: str

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            if not getattr(self, field):
                raise IdentityError(f"loader.{field} must not be empty")


class SequenceParallelism(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Conservative: size and backend enter whenever there is more than one rank."""

    size: int = 1
    backend: str = "none"


class FinalLayoutRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One component of one model, as one consumer loads it."""

    component: str
    loader: LoaderIdentity
    tensor_parallel: TensorParallel = TensorParallel()
    sequence_parallel: SequenceParallelism = SequenceParallelism()
    pipeline_parallel: PipelineParallel = PipelineParallel()
    expert_parallel: ExpertParallel = ExpertParallel()
    merged_adapters: tuple[Adapter, ...] = ()
