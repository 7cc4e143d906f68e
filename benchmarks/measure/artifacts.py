"""Synthetic artifacts: random bytes of chosen shapes, published by the real code.

The bytes of all tensors are slices of one random block as large as the largest tensor, so that a
producer of many gigabytes needs no more memory than one tensor of them, and no cache of a
processor holds it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from weightlease.identity import (
    Adaptation,
    ComponentIdentity,
    Layout,
    ProducerIdentity,
    Representation,
    SourceIdentity,
    WeightArtifactIdentity,
)
from weightlease.safetensors_format import layout_header
from weightlease.store.protocol import ArtifactWriter, ProductionMetadata, TensorSpec

MIB = 2**20
_ALIGNMENT = 64
_SCHEMAS = ("benchmark-manifest-v1", "benchmark-restorer-v1")


@dataclass(frozen=True)
class Shape:
    """How an artifact is cut: `files` equal files, each with tensors of `tensor_bytes`.

    `assets` small files without tensors go with it.
    """

    files: int
    tensor_bytes: tuple[int, ...]
    assets: int = 0

    @property
    def tensors(self) -> int:
        """Tensors of all files."""
        return self.files * len(self.tensor_bytes)

    @property
    def largest(self) -> int:
        """Bytes of the largest tensor."""
        return max(self.tensor_bytes)

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors."""
        return self.files * sum(self.tensor_bytes)

    def specs(self, file: int) -> tuple[TensorSpec, ...]:
        """The tensors of one file: BF16 matrices."""
        return tuple(
            TensorSpec(f"layers.{file:02}.{number:05}.weight", "BF16", (size // 128, 64))
            for number, size in enumerate(self.tensor_bytes)
        )


def even(files: int, tensors: int, tensor_bytes: int, assets: int = 0) -> Shape:
    """An artifact of `tensors` tensors of one size, spread over `files`."""
    return Shape(files, (tensor_bytes,) * (tensors // files), assets)


def identity(name: str) -> WeightArtifactIdentity:
    """An identity that belongs to `name` alone."""
    return WeightArtifactIdentity(
        schema_version=1,
        source=SourceIdentity(name, "benchmark", "benchmark"),
        component=ComponentIdentity("model", "full"),
        representation=Representation("canonical", "source"),
        layout=Layout("source-files"),
        adaptation=Adaptation(),
        producer=ProducerIdentity("benchmark", "1", "benchmark-v1", *_SCHEMAS),
    )


@dataclass(frozen=True)
class Producer:
    """A `WeightProducer` of `shape`: safetensors files, verbatim, out of memory."""

    identity: WeightArtifactIdentity
    shape: Shape
    block: bytes = field(repr=False)

    @property
    def total_bytes(self) -> int:
        """An upper bound with room for headers and assets."""
        return self.shape.total_bytes + (self.shape.tensors + self.shape.assets + 1) * 1024

    def produce(self, writer: ArtifactWriter) -> ProductionMetadata:
        """Write every file."""
        for number in range(self.shape.files):
            header, layout = layout_header(self.shape.specs(number))
            size = len(header) + sum(self.shape.tensor_bytes)
            with writer.payload(file_name(number), size) as file:
                file.write(header)
                for tensor in layout.tensors:
                    file.write(self.bytes_of(tensor.end - tensor.start, tensor.start))
        for number in range(self.shape.assets):
            content = f'{{"asset": {number}}}'.encode()
            with writer.asset(f"config/{number}.json", len(content)) as file:
                file.write(content)
        return ProductionMetadata(*_SCHEMAS, {"format": "benchmark"})

    def bytes_of(self, size: int, seed: int) -> memoryview:
        """The bytes of one tensor."""
        room = len(self.block) - size
        offset = seed // _ALIGNMENT % (room // _ALIGNMENT + 1) * _ALIGNMENT
        return memoryview(self.block)[offset : offset + size]

    def tensors(self, file: int) -> Iterator[tuple[TensorSpec, memoryview]]:
        """Each tensor of one file with its bytes, for another store's writer."""
        specs = self.shape.specs(file)
        starts = {tensor.name: tensor.start for tensor in layout_header(specs)[1].tensors}
        for spec, size in zip(specs, self.shape.tensor_bytes, strict=True):
            yield spec, self.bytes_of(size, starts[spec.name])


def producer(name: str, shape: Shape) -> Producer:
    """A producer with a block of its own; equal names and shapes make equal bytes."""
    return Producer(identity(name), shape, random.Random(name).randbytes(shape.largest))  # noqa: S311 - filler


def file_name(number: int) -> str:
    """A payload's name."""
    return f"model-{number:05}.safetensors"
