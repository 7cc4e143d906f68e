"""An agent in memory: what a producer's Job needs of `AgentStore`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from recording_writer import RecordingWriter
from weightlease import wire
from weightlease.errors import WeightLeaseError
from weightlease.identity import WeightArtifactIdentity
from weightlease.store.protocol import ProductionMetadata

MANIFEST_SHA256 = "5" * 64


class FakePublication(RecordingWriter):
    """One publication; `finalized` holds the expectation that came with the end."""

    def __init__(self, key: str, *, present: bool) -> None:
        super().__init__()
        self.key = key
        self.present = present
        self.manifest_sha256 = MANIFEST_SHA256 if present else ""
        self.finalized: str | None = None

    def finalize(
        self, metadata: ProductionMetadata, *, expected_manifest_sha256: str = ""
    ) -> wire.FinalizeResult:
        """Publish."""
        assert metadata.producer_schema
        self.finalized = expected_manifest_sha256
        size = sum(len(content) for content in self.payloads.values())
        return wire.FinalizeResult(self.key, MANIFEST_SHA256, "6" * 64, "p", size)


class FakeAgent:
    """Refuses with each of `refusals` in turn, then begins publications."""

    def __init__(self, *refusals: WeightLeaseError, present: bool = False) -> None:
        self.refusals = list(refusals)
        self.present = present
        self.publications: list[FakePublication] = []
        self.storage_classes: list[str] = []

    @contextmanager
    def _publication(self, key: str) -> Iterator[FakePublication]:
        publication = FakePublication(key, present=self.present)
        self.publications.append(publication)
        yield publication

    def begin(
        self, identity: WeightArtifactIdentity, total_bytes: int, *, storage_class: str
    ) -> AbstractContextManager[FakePublication]:
        """See `producer.job.Agent`."""
        assert total_bytes > 0
        if self.refusals:
            raise self.refusals.pop(0)
        self.storage_classes.append(storage_class)
        return self._publication(identity.key)
