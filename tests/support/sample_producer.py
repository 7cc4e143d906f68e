"""A producer of small artifacts whose every misbehaviour can be dialled in."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from small_artifact import identity, safetensors_bytes
from weightlease.identity import WeightArtifactIdentity
from weightlease.store.protocol import ArtifactWriter, FileWriter, ProductionMetadata

WEIGHTS = {
    "encoder.weight": ("F32", (2, 3), bytes(range(24))),
    "scale": ("BF16", (), b"\x80\x3f"),
    "empty": ("F32", (0, 7), b""),
}
PAYLOADS = {"model.safetensors": safetensors_bytes(WEIGHTS)}
ASSETS = {"config.json": b"{}", "1_Pooling/config.json": b'{"pooling": true}', "same.json": b"{}"}

Hook = Callable[[FileWriter], None]


def fine_tune(number: int, **layout: int) -> WeightArtifactIdentity:
    """Identities of one shape that differ in their source alone, or in `layout` fields."""
    base = identity()
    source = msgspec.structs.replace(base.source, fingerprint=f"fine-tune-{number}")
    shape = msgspec.structs.replace(base.layout, **layout)
    return msgspec.structs.replace(base, source=source, layout=shape)


@dataclass(frozen=True)
class SampleProducer:
    """A `WeightProducer` of verbatim files, written in steps of `step` bytes.

    `during` runs with the file half written, `declared` overrides declared sizes, `stated` says
    what the source claims a file's sha256 to be.
    """

    identity: WeightArtifactIdentity = field(default_factory=lambda: fine_tune(0))
    payloads: Mapping[str, bytes] = field(default_factory=lambda: PAYLOADS)
    assets: Mapping[str, bytes] = field(default_factory=lambda: ASSETS)
    total_bytes: int = 64 * 1024 * 1024
    step: int = 100
    during: Hook = lambda writer: None
    declared: Mapping[str, int] = field(default_factory=dict)
    stated: Mapping[str, str] = field(default_factory=dict)

    def produce(self, writer: ArtifactWriter) -> ProductionMetadata:
        for name, data in self.payloads.items():
            size = self.declared.get(name, len(data))
            with writer.payload(name, size, self.stated.get(name, sha256(data))) as file:
                self._write(file, data)
        for path, data in self.assets.items():
            size = self.declared.get(path, len(data))
            with writer.asset(path, size, self.stated.get(path, "")) as file:
                self._write(file, data)
        producer = self.identity.producer
        return ProductionMetadata(
            producer.manifest_schema, producer.restorer_schema, {"format": "canonical"}
        )

    def with_content(self, byte: int) -> SampleProducer:
        """The same shapes with other values."""
        weights = {
            name: (dtype, shape, bytes([byte]) * len(body))
            for name, (dtype, shape, body) in WEIGHTS.items()
        }
        return replace(self, payloads={"model.safetensors": safetensors_bytes(weights)})

    def _write(self, file: FileWriter, data: bytes) -> None:
        half = len(data) // 2
        for start in range(0, half, self.step):
            file.write(data[start : min(start + self.step, half)])
        self.during(file)
        for start in range(half, len(data), self.step):
            file.write(memoryview(data)[start : start + self.step])


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
