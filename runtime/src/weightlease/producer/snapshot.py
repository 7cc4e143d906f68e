"""The snapshot producer: a component's selected files, verbatim, as one artifact.

    model_id       as stated, else the repository id, else `<claim or path>`
    revision       as stated, else the commit, else the fingerprint
    fingerprint    sha256 over sorted (path, size, sha256) of the selected files, assets included
    component      {name, ownership "full"}
    representation {"canonical", dtype "source"}
    layout         {"source-files"}

The key is known before a weight byte is streamed. A payload file's sha256 equals the Hub's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from weightlease.errors import WeightLeaseError
from weightlease.identity import (
    Adaptation,
    ComponentIdentity,
    Layout,
    ProducerIdentity,
    Representation,
    SourceIdentity,
    WeightArtifactIdentity,
)
from weightlease.names import DEFAULT_COMPONENT
from weightlease.producer.tensor_names import TensorNames
from weightlease.reasons import Reason
from weightlease.source.errors import SourceError
from weightlease.source.fingerprint import fingerprint
from weightlease.source.folder import FolderSource
from weightlease.source.model import (
    Phase,
    Progress,
    Source,
    SourceFile,
    Waiting,
    patient,
    silent,
)
from weightlease.source.selection import Selection, candidates, index_among, printable, select
from weightlease.source.shard_index import MAX_INDEX_BYTES, parse_index
from weightlease.store.protocol import (
    ArtifactWriter,
    CoordinationScope,
    FileWriter,
    LookupPhase,
    PatientWriter,
    ProductionMetadata,
)

# An agent gives up on a producer that sends nothing for a minute while it fetches the next shard.
KEEP_ALIVE_SECONDS = 10.0
FORMAT = "weightlease.snapshot-v1"

# A literal constant of the algorithm: it changes with the bytes or names that are published, never
# with an image or a release.
SNAPSHOT = ProducerIdentity(
    producer_id="weightlease.snapshot",
    version="1",
    implementation_fingerprint="weightlease.snapshot-v1",
    manifest_schema="weightlease.snapshot-manifest-v1",
    restorer_schema="weightlease.source-files-v1",
)


class SnapshotProducer:
    """Streams one selection of one source; a `WeightProducer`.

    `expected_manifest_sha256` is what another node published under this key, or empty; a store
    that can refuse another one before it publishes does so.
    """

    lookup_phase = LookupPhase.PRE_LOAD_SAFE
    coordination = CoordinationScope.SINGLE_PROCESS

    def __init__(
        self,
        source: Source,
        selection: Selection,
        identity: WeightArtifactIdentity,
        *,
        expected_manifest_sha256: str = "",
        progress: Progress = silent,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._source = source
        self._selection = selection
        self._progress = progress
        self.identity = identity
        self.expected_manifest_sha256 = expected_manifest_sha256

    @property
    def selection(self) -> Selection:
        """The files this producer streams."""
        return self._selection

    @property
    def total_bytes(self) -> int:
        """Size of all payload files and assets, in bytes."""
        return self._selection.total_bytes

    def produce(self, writer: ArtifactWriter) -> ProductionMetadata:
        """Stream assets, then payload.

        Raises:
            SourceError: the source's reason.
            WeightLeaseError: what the store found wrong with the bytes or with itself.

        """
        for file in self._selection.assets:
            self._stream_asset(writer, file)
        names = TensorNames(self._selection.index)
        for file in self._selection.payload:
            self._stream_payload(writer, file, names)
        return ProductionMetadata(
            SNAPSHOT.manifest_schema, SNAPSHOT.restorer_schema, {"format": FORMAT}
        )

    def _stream_asset(self, writer: ArtifactWriter, file: SourceFile) -> None:
        with self._source.open(file, self._keeper(writer)) as opened:
            try:
                with writer.asset(file.path, file.size, file.sha256) as target:
                    for chunk in opened.chunks():
                        self._write(target, chunk)
            except WeightLeaseError as error:
                # The store judged the bytes it got; say so only if they are the listed ones.
                if not isinstance(error, SourceError):
                    opened.verify()
                raise

    def _stream_payload(self, writer: ArtifactWriter, file: SourceFile, names: TensorNames) -> None:
        header = names.of(file.path)
        with self._source.open(file, self._keeper(writer)) as opened:
            try:
                with writer.payload(file.path, file.size, file.sha256) as target:
                    for chunk in opened.chunks():
                        header.feed(chunk)
                        self._write(target, chunk)
            except WeightLeaseError as error:
                if not isinstance(error, SourceError):
                    opened.verify()
                raise

    def _keeper(self, writer: ArtifactWriter) -> Waiting:
        if not isinstance(writer, PatientWriter):
            return patient
        told = self._clock()

        def keep_alive() -> None:
            nonlocal told
            if self._clock() - told >= KEEP_ALIVE_SECONDS:
                told = self._clock()
                writer.keep_alive()

        return keep_alive

    def _write(self, target: FileWriter, chunk: memoryview) -> None:
        target.write(chunk)
        self._progress(Phase.PUBLISH, len(chunk), self.total_bytes)


class SnapshotSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to take of a source, under which name, and what must come out; empty means open."""

    model_id: str
    component: str = DEFAULT_COMPONENT
    revision: str = ""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    expected_fingerprint: str = ""
    expected_key: str = ""
    expected_manifest_sha256: str = ""


def snapshot(source: Source, spec: SnapshotSpec, progress: Progress = silent) -> SnapshotProducer:
    """List, select and hash `source`, and fix the identity.

    Raises:
        SourceError: the source's reason; `SourceChanged` if the fingerprint is not the expected
            one, `IdentityMismatch` if the key is not.

    """
    selection = _hashed_selection(source, spec)
    digest = fingerprint(selection.files)
    _require_fingerprint(source, spec.expected_fingerprint, digest)
    revision = spec.revision or source.revision or digest
    identity = WeightArtifactIdentity(
        schema_version=1,
        source=SourceIdentity(spec.model_id, revision, digest),
        component=ComponentIdentity(spec.component, "full"),
        representation=Representation("canonical", "source"),
        layout=Layout("source-files"),
        adaptation=Adaptation(),
        producer=SNAPSHOT,
    )
    _require_key(source, spec.expected_key, identity)
    return SnapshotProducer(
        source,
        selection,
        identity,
        expected_manifest_sha256=spec.expected_manifest_sha256,
        progress=progress,
    )


def snapshot_folder(
    path: str,
    *,
    component: str = DEFAULT_COMPONENT,
    component_path: str = ".",
    model_id: str = "",
    revision: str = "",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    progress: Progress = silent,
) -> SnapshotProducer:
    """A producer of the checkpoint in the local folder `path`.

    `model_id` defaults to the folder's path, `revision` to the fingerprint; copies share a key only
    where both are stated equal.

    Raises:
        SourceError: see `snapshot`.

    """
    spec = SnapshotSpec(
        model_id=model_id or printable(path),
        component=component,
        revision=revision,
        include=tuple(include),
        exclude=tuple(exclude),
    )
    return snapshot(FolderSource(path, component_path, progress), spec, progress)


def _hashed_selection(source: Source, spec: SnapshotSpec) -> Selection:
    chosen = candidates(source.files(), spec.include, spec.exclude)
    index_file = index_among(chosen)
    index = None
    if index_file is not None:
        index = parse_index(index_file.path, source.read(index_file, MAX_INDEX_BYTES))
    selected = select(chosen, index)
    known = {file.path: file for file in source.hashed(selected.files)}
    return Selection(
        tuple(known[file.path] for file in selected.payload),
        tuple(known[file.path] for file in selected.assets),
        index,
    )


def _require_fingerprint(source: Source, expected: str, actual: str) -> None:
    if expected and expected != actual:
        raise SourceError(
            Reason.SOURCE_CHANGED,
            f"{source.name} has the fingerprint {actual}, and {expected} was stated; correct "
            "source.fingerprint or restore the source",
            expected=expected,
            actual=actual,
        )


def _require_key(source: Source, expected: str, identity: WeightArtifactIdentity) -> None:
    if expected and expected != identity.key:
        raise SourceError(
            Reason.IDENTITY_MISMATCH,
            f"{source.name} makes the key {identity.key} here, and another node fixed {expected}: "
            "the source differs between the nodes or has changed since",
            expected=expected,
            actual=identity.key,
            fingerprint=identity.source.fingerprint,
        )
