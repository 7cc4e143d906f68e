"""One publication's stream, on a thread of its own, from `build` to `finalize` or `abort`.

The loop lends the thread the connection, so bytes go from the socket straight into the chunks that
the store hashes and writes; memory is the store's bounded pool of chunks and nothing more. The
thread gives the connection back in state READY, or raises when the peer is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog

from weightlease.errors import (
    Failure,
    FailureCode,
    ProtocolError,
    Stage,
    WeightLeaseError,
    production_failure,
)
from weightlease.filesystem import storage_failure
from weightlease.store.protocol import ProductionMetadata
from weightlease.store.publication import Publication
from weightlease.store.staged_file import StagedFile
from weightlease.wire import (
    MAX_DECLARED_ASSETS,
    MAX_DECLARED_FILES,
    MAX_WRITE_BYTES,
    CloseFileResult,
    DeclareParams,
    Empty,
    FileDeclaration,
    FileKind,
    FinalizeParams,
    FinalizeResult,
    OpenFileParams,
    Request,
    WriteParams,
    decode_request,
    encode_error,
    encode_result,
)
from weightlease_node_agent.channel import ThreadChannel
from weightlease_node_agent.settings import Limits
from weightlease_node_agent.states import State, next_state

log = structlog.get_logger(__name__)
_DISCARD_BYTES = 256 * 1024
_MAX_FILES = {FileKind.PAYLOAD: MAX_DECLARED_FILES, FileKind.ASSET: MAX_DECLARED_ASSETS}


@dataclass
class Progress:
    """How far a publication is, in bytes; written by its thread, read by the reporter."""

    total: int
    done: int = 0


@dataclass
class Outcome:
    """How a stream ended: published, or with the failure that its producer was told."""

    published: FinalizeResult | None = None
    failure: Failure | None = None


@dataclass
class _OpenFile:
    declaration: FileDeclaration
    staged: StagedFile
    block: AbstractContextManager[StagedFile]


@dataclass
class PublicationSession:
    """Serves one connection while it publishes.

    `expectation` gives the manifest digest that the spec asks for now, empty for any; it raises
    when the right to publish has gone. `published` is told before the producer is.
    """

    channel: ThreadChannel
    publication: Publication
    progress: Progress
    limits: Limits
    expectation: Callable[[], str]
    published: Callable[[FinalizeResult], None]
    outcome: Outcome = field(default_factory=Outcome)
    _state: State = State.PUBLISHING
    _declared: dict[tuple[FileKind, str], FileDeclaration] = field(default_factory=dict)
    _declared_bytes: int = 0
    _taken_bytes: int = 0
    _file: _OpenFile | None = None

    def run(self) -> Outcome:
        """Serve until the publication is over.

        Raises:
            PeerLostError, ProtocolError: the connection is to be dropped; nothing was published
                unless `outcome.published` says so.

        """
        try:
            while self._state is not State.READY:
                body = self.channel.receive_frame(
                    idle=self.limits.body_seconds, frame=self.limits.frame_seconds
                )
                self._step(*decode_request(body))
        finally:
            if self.outcome.published is None:
                self._abandon()
        return self.outcome

    def _step(self, request: Request, params: msgspec.Struct) -> None:
        following = next_state(self._state, request.method)
        if following is None:
            self._refuse(request)
            return
        if self._state is State.FAILED:
            self._answer_failed(request, params)
            self._state = following
            return
        try:
            result = self._handler(request.method)(params)
        except ProtocolError:
            raise
        except (WeightLeaseError, OSError) as error:
            failure = self._fail(error)
            self._state = State.READY if following is State.READY else State.FAILED
            self._send(encode_error(request.id, failure))
            return
        self._state = following
        if result is not None:
            self._send(encode_result(request.id, result))

    def _handler(self, method: str) -> Callable[[Any], msgspec.Struct | None]:
        handlers: dict[str, Callable[[Any], msgspec.Struct | None]] = {
            "declare": self._declare,
            "open_file": self._open_file,
            "write": self._write,
            "close_file": self._close_file,
            "finalize": self._finalize,
            "abort": self._abort,
        }
        return handlers[method]

    def _refuse(self, request: Request) -> None:
        if request.method == "write":
            raise ProtocolError(f"a write is not allowed while {self._state}")
        failure = out_of_order(request.method, self._state)
        self._send(encode_error(request.id, failure))

    def _answer_failed(self, request: Request, params: msgspec.Struct) -> None:
        if isinstance(params, WriteParams):
            self._admit(params.nbytes)
            self._discard(params.nbytes)
        elif request.method == "abort":
            self._send(encode_result(request.id, Empty()))
        else:
            failure = self.outcome.failure or out_of_order(request.method, self._state)
            self._send(encode_error(request.id, failure))

    def _declare(self, params: DeclareParams) -> Empty:
        for file in params.files:
            known = (file.kind, file.name)
            if known in self._declared:
                raise production_failure(f"{file.kind} {file.name[:255]!r} is declared twice")
            if file.size < 0:
                raise production_failure(f"{file.kind} {file.name[:255]!r} has size {file.size}")
            self._declared[known] = file
            self._declared_bytes += file.size
        for kind, most in _MAX_FILES.items():
            if sum(declared is kind for declared, _ in self._declared) > most:
                raise production_failure(f"more than {most} files of kind {kind} are declared")
        if self._declared_bytes > self.progress.total:
            raise production_failure(
                f"declared files hold {self._declared_bytes} bytes, the publication was begun "
                f"with total_bytes {self.progress.total}"
            )
        return Empty()

    def _open_file(self, params: OpenFileParams) -> Empty:
        declaration = self._declared.pop((params.kind, params.name), None)
        if declaration is None:
            raise production_failure(
                f"{params.kind} {params.name[:255]!r} is not declared, or was sent before"
            )
        opener = (
            self.publication.payload if params.kind is FileKind.PAYLOAD else self.publication.asset
        )
        block = opener(declaration.name, declaration.size, declaration.sha256)
        self._file = _OpenFile(declaration, block.__enter__(), block)
        return Empty()

    def _write(self, params: WriteParams) -> None:
        self._admit(params.nbytes)
        file, left = self._open, params.nbytes
        declared, had = file.declaration.size, file.staged.received
        try:
            if had + left > declared:
                raise production_failure(
                    f"{file.declaration.name!r} was declared with {declared} bytes and got "
                    f"{had + left}"
                )
            deadline = time.monotonic() + self.limits.body_seconds
            while left:
                room = file.staged.reserve()[:left]
                self.channel.fill(room, deadline)
                left -= len(room)
                file.staged.commit(len(room))
        except (WeightLeaseError, OSError):
            self._discard(left)
            raise
        self.progress.done += params.nbytes

    def _close_file(self, _: Empty) -> CloseFileResult:
        file = self._open
        digest = file.staged.finish()
        file.block.__exit__(None, None, None)
        self._file = None
        return CloseFileResult(file.declaration.size, digest)

    def _finalize(self, params: FinalizeParams) -> FinalizeResult:
        if self._declared:
            kind, name = next(iter(self._declared))
            raise production_failure(
                f"{len(self._declared)} declared files were not sent, first {kind} {name!r}"
            )
        expected = self.expectation()
        if expected and params.expected_manifest_sha256 not in {"", expected}:
            raise WeightLeaseError.of(
                Stage.PRODUCTION,
                FailureCode.CONTENT_MISMATCH,
                f"the producer expects manifest {params.expected_manifest_sha256}, this node's "
                f"spec {expected}",
            )
        metadata = ProductionMetadata(
            params.producer_schema, params.restorer_schema, params.format_metadata
        )
        with self.publication.finalize(
            metadata, expected_manifest_sha256=expected or params.expected_manifest_sha256
        ) as artifact:
            result = FinalizeResult(
                artifact.key,
                artifact.manifest_sha256,
                artifact.manifest.artifact_content_sha256,
                artifact.ready.publication_id,
                artifact.manifest.payload_bytes,
            )
            self.outcome.published = result
            self.published(result)
        return result

    def _abort(self, _: Empty) -> Empty:
        self._abandon()
        return Empty()

    @property
    def _open(self) -> _OpenFile:
        if self._file is None:  # the table admits write and close_file in WRITING alone
            raise ProtocolError("no file is open")
        return self._file

    def _admit(self, nbytes: int) -> None:
        self._taken_bytes += nbytes
        if not 0 < nbytes <= MAX_WRITE_BYTES:
            raise ProtocolError(f"a write of {nbytes} bytes is outside 1..{MAX_WRITE_BYTES}")
        if self._taken_bytes > self.progress.total + MAX_WRITE_BYTES:
            raise ProtocolError(
                f"{self._taken_bytes} bytes came, {self.progress.total} were announced"
            )

    def _discard(self, nbytes: int) -> None:
        scratch = memoryview(bytearray(min(nbytes, _DISCARD_BYTES)))
        deadline = time.monotonic() + self.limits.body_seconds
        while nbytes:
            view = scratch[:nbytes]
            self.channel.fill(view, deadline)
            nbytes -= len(view)

    def _fail(self, error: WeightLeaseError | OSError) -> Failure:
        failure = self._abandon(error)
        self.outcome.failure = failure
        return failure

    def _abandon(self, error: Exception | None = None) -> Failure:
        """End file and publication; the failure as the store words it."""
        told: Exception = error or _AbandonedError()
        if self._file is not None:
            block, self._file = self._file.block, None
            try:
                block.__exit__(type(told), told, None)
            except (_AbandonedError, WeightLeaseError, OSError) as reworded:
                told = reworded
        self.publication.abort()
        if isinstance(told, WeightLeaseError):
            return told.failure
        if isinstance(told, OSError):
            return storage_failure(told, "cannot write the publication")
        return out_of_order("abort", self._state)

    def _send(self, data: bytes) -> None:
        self.channel.send_frame(data, self.limits.send_seconds)


class _AbandonedError(Exception):
    """Tells an open file that its end will not come."""


def out_of_order(method: str, state: State) -> Failure:
    """The failure of a request that its connection's state does not allow."""
    return Failure(
        Stage.ACCESS,
        FailureCode.PROTOCOL_ERROR,
        retryable=False,
        message=f"{method} is not allowed while {state}",
    )
