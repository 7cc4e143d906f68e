"""One prewarm Job: open the source, fix the identity, stream to the agent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import msgspec

from weightlease import wire
from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.identity import WeightArtifactIdentity
from weightlease.producer.outcome import WORTH_WAITING
from weightlease.producer.progress import Reporter
from weightlease.producer.request import HubSource as RequestedHub
from weightlease.producer.request import ProducerRequest
from weightlease.producer.snapshot import SNAPSHOT, SnapshotProducer, SnapshotSpec, snapshot
from weightlease.reasons import Reason, TerminationMessage
from weightlease.source.folder import FolderSource
from weightlease.source.hub import DEFAULT_ENDPOINT, HubAccess, HubSource
from weightlease.source.model import Source
from weightlease.store.protocol import ArtifactWriter, ProductionMetadata


class Publication(ArtifactWriter, Protocol):
    """One begun publication; aborted on exit unless it was finalized."""

    @property
    def present(self) -> bool:
        """Whether the artifact was there already."""

    @property
    def manifest_sha256(self) -> str:
        """Digest of the present artifact's manifest."""

    def finalize(
        self, metadata: ProductionMetadata, *, expected_manifest_sha256: str = ""
    ) -> wire.FinalizeResult:
        """Publish what was streamed."""


class Agent(Protocol):
    """Where publications begin."""

    def begin(
        self, identity: WeightArtifactIdentity, total_bytes: int, *, storage_class: str
    ) -> AbstractContextManager[Publication]:
        """Become the producer of `identity`, or find it present."""


class JobEnvironment(msgspec.Struct, frozen=True):
    """What a Job gets beside its request. Times in seconds."""

    hub_endpoint: str = ""
    hub_token: str = ""
    patience: float = 60.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def run_job(
    request: ProducerRequest, agent: Agent, environment: JobEnvironment, reporter: Reporter
) -> TerminationMessage:
    """Produce what `request` asks for; returns how it ended well.

    Raises:
        SourceError: the source's reason.
        WeightLeaseError: the request does not fit this image, or the agent's failure.

    """
    _require_own_abi(request)
    spec = SnapshotSpec(
        model_id=request.model_id or _default_model_id(request),
        component=request.component.name,
        include=_patterns(request, "include"),
        exclude=_patterns(request, "exclude"),
        expected_fingerprint=request.fingerprint,
        expected_key=request.expected_key,
        expected_manifest_sha256=request.expected_manifest_sha256,
    )
    with _source(request, environment, reporter) as source:
        producer = snapshot(source, spec, reporter.progress)
        reporter.event(
            "identified",
            artifact=request.artifact,
            key=producer.identity.key,
            fingerprint=producer.identity.source.fingerprint,
            payloadFiles=len(producer.selection.payload),
            assets=len(producer.selection.assets),
            bytes=producer.total_bytes,
        )
        return _publish(producer, request, agent, environment, reporter)


def _publish(
    producer: SnapshotProducer,
    request: ProducerRequest,
    agent: Agent,
    environment: JobEnvironment,
    reporter: Reporter,
) -> TerminationMessage:
    key = producer.identity.key
    payload_bytes = sum(file.size for file in producer.selection.payload)
    begun = _begin(producer, request, agent, environment, reporter)
    with begun as publication:
        if publication.present:
            reason, digest = Reason.ALREADY_PUBLISHED, publication.manifest_sha256
        else:
            metadata = producer.produce(publication)
            result = publication.finalize(
                metadata, expected_manifest_sha256=producer.expected_manifest_sha256
            )
            reason, digest = Reason.PUBLISHED, result.manifest_sha256
    expected = producer.expected_manifest_sha256
    if expected and digest != expected:
        raise WeightLeaseError.of(
            Stage.VALIDATION,
            FailureCode.CONTENT_MISMATCH,
            f"key {key} has the manifest {digest} here and {expected} where it was made first",
            expected=expected,
            actual=digest,
        )
    return TerminationMessage(
        reason,
        f"{request.artifact} is on this node",
        retryable=False,
        key=key,
        manifest_sha256=digest,
        bytes=payload_bytes,
    )


def _begin(
    producer: SnapshotProducer,
    request: ProducerRequest,
    agent: Agent,
    environment: JobEnvironment,
    reporter: Reporter,
) -> AbstractContextManager[Publication]:
    """Begin; while the agent is away or does not know this Job yet, ask again for a while."""
    deadline = environment.clock() + environment.patience
    pause = 0.25
    while True:
        try:
            return agent.begin(
                producer.identity, producer.total_bytes, storage_class=request.storage_class
            )
        except WeightLeaseError as error:
            left = deadline - environment.clock()
            if error.failure.code not in WORTH_WAITING or left <= 0:
                raise
            reporter.event("waiting", reason=str(error.failure.code), message=str(error))
            environment.sleep(min(pause, left))
            pause = min(pause * 2, 5.0)


@contextmanager
def _source(
    request: ProducerRequest, environment: JobEnvironment, reporter: Reporter
) -> Iterator[Source]:
    if isinstance(request.source, RequestedHub):
        access = HubAccess(
            request.source.endpoint or environment.hub_endpoint or DEFAULT_ENDPOINT,
            environment.hub_token,
        )
        with HubSource(
            request.source.repo,
            request.source.revision,
            scratch=request.scratch,
            access=access,
            component_path=request.component.path,
            progress=reporter.progress,
        ) as hub:
            yield hub
    else:
        path, component = request.source.path, request.component.path
        with FolderSource(path, component, reporter.progress) as folder:
            yield folder


def _default_model_id(request: ProducerRequest) -> str:
    if isinstance(request.source, RequestedHub):
        return request.source.repo
    return request.source.origin


def _patterns(request: ProducerRequest, which: str) -> tuple[str, ...]:
    patterns: tuple[str, ...] = getattr(request.source, which, ())
    return patterns


def _require_own_abi(request: ProducerRequest) -> None:
    asked = request.producer
    own = (
        SNAPSHOT.producer_id,
        SNAPSHOT.version,
        SNAPSHOT.implementation_fingerprint,
        SNAPSHOT.manifest_schema,
        SNAPSHOT.restorer_schema,
    )
    if msgspec.structs.astuple(asked) != own:
        raise _invalid(
            f"the WeightProducer asks for {', '.join(msgspec.structs.astuple(asked))} and this "
            f"image implements {', '.join(own)}; correct spec.producer or spec.image"
        )
    if request.representation != "canonical":
        raise _invalid(f"representation {request.representation!r} is not one of: canonical")


def _invalid(message: str) -> WeightLeaseError:
    return WeightLeaseError.of(Stage.CONFIGURATION, FailureCode.INVALID_CONFIG, message)
