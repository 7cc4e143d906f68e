"""The checkpoint-plan producer: a canonical checkpoint becomes a final layout. PRE_LOAD_SAFE.

    model_id, revision, fingerprint   as the snapshot producer's
    component       {name, "full"}
    representation  the plan's
    layout          the plan's, with coordinates and {"plan_sha256", "plan_id", "plan_version"}

It needs no model and no process group. Output files are cut by size over tensors ordered by
descending element size and then by name, so their bytes depend on the tensors alone and not on how
the source was split. Memory: a window per source tensor of one output, and what a cast doubles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from weightlease import parallelism
from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.identity import (
    Adaptation,
    ComponentIdentity,
    ProducerIdentity,
    Representation,
    WeightArtifactIdentity,
)
from weightlease.parallelism import Coordinates
from weightlease.producer.plan import FLOATS, CheckpointPlan
from weightlease.producer.plan_reader import element_bytes, pieces
from weightlease.producer.plan_rules import Output, outputs
from weightlease.producer.plan_tensors import Leaf
from weightlease.restore.tensor_bytes import cast
from weightlease.safetensors_format import LENGTH_BYTES, Header, HeaderParser, layout_header
from weightlease.source.errors import malformed
from weightlease.source.model import OpenFile, RandomAccessFile, Source, SourceFile
from weightlease.source.prepared import PreparedWeightSource
from weightlease.store.protocol import (
    ArtifactWriter,
    CoordinationScope,
    LookupPhase,
    ProductionMetadata,
    TensorSpec,
)

FORMAT = "weightlease.checkpoint-plan-v1"
MANIFEST_SCHEMA = "weightlease.checkpoint-plan-manifest-v1"
SHARD_BYTES = 5 * 1024**3
_HEADER_STEP = 256 * 1024


class CheckpointPlanProducer:
    """Applies one plan to one prepared source at one coordinate."""

    lookup_phase = LookupPhase.PRE_LOAD_SAFE
    coordination = CoordinationScope.SINGLE_PROCESS

    def __init__(
        self,
        source: PreparedWeightSource,
        plan: CheckpointPlan,
        *,
        component: str,
        coordinates: Coordinates | None = None,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        """Fix the identity, and read the headers of the source's safetensors files.

        Raises:
            PlanError: the plan does not fit the checkpoint.
            SourceError: the source's reason.

        """
        self._source = source
        self._plan = plan
        self._coordinates = coordinates or Coordinates()
        self._files = [file for file in source.files if file.path.endswith(".safetensors")]
        leaves = _leaves(source.source, self._files)
        self._outputs = outputs(plan, leaves, self._coordinates)
        self._shards = list(_cut(self._outputs, shard_bytes))
        self.identity = _identity(source, plan, component, self._coordinates)

    @property
    def total_bytes(self) -> int:
        """Size of all payload files, in bytes."""
        total = 0
        for shard in self._shards:
            header, layout = layout_header([_spec(output) for output in shard])
            total += len(header) + sum(tensor.end - tensor.start for tensor in layout.tensors)
        return total

    def produce(self, writer: ArtifactWriter) -> ProductionMetadata:
        """Stream every output.

        Raises:
            SourceError: the source changed, or cannot be read.
            WeightLeaseError: what the store found wrong; unsupported where a cast needs torch.

        """
        self._source.require_unchanged()
        with ExitStack() as stack:
            opened = {
                file.path: stack.enter_context(_opened(self._source.source, file))
                for file in self._files
            }
            for number, shard in enumerate(self._shards, start=1):
                name = f"model-{number:05d}-of-{len(self._shards):05d}.safetensors"
                with writer.tensors(name, tuple(_spec(output) for output in shard)) as file:
                    for output in shard:
                        for piece in _converted(output, opened):
                            file.write(output.name, piece)
        self._source.require_unchanged()
        return ProductionMetadata(
            MANIFEST_SCHEMA,
            self._plan.restorer_schema,
            {
                "format": FORMAT,
                "plan_sha256": self._plan.sha256,
                "tensor_count": len(self._outputs),
            },
        )


def _identity(
    source: PreparedWeightSource, plan: CheckpointPlan, component: str, coordinates: Coordinates
) -> WeightArtifactIdentity:
    said = {
        "plan_id": plan.plan_id,
        "plan_version": plan.version,
        "plan_sha256": plan.sha256,
    }
    return WeightArtifactIdentity(
        schema_version=1,
        source=source.identity,
        component=ComponentIdentity(component, "full"),
        representation=Representation(plan.representation.name, plan.representation.dtype),
        layout=parallelism.layout(plan.layout, coordinates, said),
        adaptation=Adaptation(),
        producer=ProducerIdentity(
            "weightlease.checkpoint-plan", "1", FORMAT, MANIFEST_SCHEMA, plan.restorer_schema
        ),
    )


@contextmanager
def _opened(source: Source, file: SourceFile) -> Iterator[RandomAccessFile]:
    """One source file that can be read anywhere; a download is verified before it is used."""
    with source.open(file) as opened:
        if source.revision:
            opened.verify()
        yield _random_access(source, opened)


def _random_access(source: Source, opened: OpenFile) -> RandomAccessFile:
    if isinstance(opened, RandomAccessFile):
        return opened
    raise WeightLeaseError.of(
        Stage.PRODUCTION,
        FailureCode.PRODUCER_UNSUPPORTED,
        f"{source.name} cannot be read at random, which a plan needs",
    )


def _leaves(source: Source, files: list[SourceFile]) -> Iterator[Leaf]:
    seen: dict[str, str] = {}
    for file in files:
        with _opened(source, file) as opened:
            header = _header(opened, file)
        for tensor in header.tensors:
            first = seen.setdefault(tensor.name, file.path)
            if first != file.path:
                raise malformed(
                    f"tensor {tensor.name[:200]!r} is in both {first!r} and {file.path!r}"
                )
            yield Leaf(
                file.path,
                tensor.name,
                tensor.dtype,
                tensor.shape,
                header.data_start + tensor.start,
            )


def _header(opened: RandomAccessFile, file: SourceFile) -> Header:
    parser = HeaderParser(file.size)
    offset = 0
    while parser.header is None:
        # the length first: it is checked before anything is allocated for it
        step = LENGTH_BYTES if offset == 0 else _HEADER_STEP
        data = opened.read_at(offset, min(step, file.size - offset))
        parser.feed(data)
        offset += len(data)
    return parser.header


def _cut(found: tuple[Output, ...], limit: int) -> Iterator[tuple[Output, ...]]:
    shard: list[Output] = []
    size = 0
    for output in sorted(found, key=lambda each: (-element_bytes(each.dtype), each.name)):
        nbytes = element_bytes(output.dtype)
        for dimension in output.node.shape:
            nbytes *= dimension
        if shard and size + nbytes > limit:
            yield tuple(shard)
            shard, size = [], 0
        shard.append(output)
        size += nbytes
    yield tuple(shard)


def _spec(output: Output) -> TensorSpec:
    return TensorSpec(output.name, output.dtype, output.node.shape)


def _converted(output: Output, files: Mapping[str, RandomAccessFile]) -> Iterator[memoryview]:
    source = output.node.dtype
    for piece in pieces(output.node, files):
        if source == output.dtype or source not in FLOATS:
            yield piece
        else:
            yield cast(piece, source, output.dtype)
