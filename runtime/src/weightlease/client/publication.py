"""Publishing over the socket: one connection, one artifact, bytes streamed without a round trip.

    begin_publication ─► present
                      └► build ─► (declare, open_file, write…, close_file)… ─► finalize
                                └► abort, or the connection closes

A write has no answer. An error that the agent sends meanwhile is noticed before the next write, so
a producer that was cut off learns why. A publication is never retried: after a broken connection
nobody here knows what was published.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

from weightlease import wire
from weightlease.client.connection import Connection
from weightlease.client.settings import ClientSettings
from weightlease.errors import WeightLeaseError, production_failure
from weightlease.store.protocol import Buffer, ProductionMetadata, TensorSpec
from weightlease.store.tensor_file import TensorFile, tensor_file

_ABORT_SECONDS = 5.0


class Publication:
    """One begun publication: an `ArtifactWriter` while it builds; aborted unless finalized.

    `present` says that the artifact was there already; then there is nothing to write. Used as a
    context manager by one thread.
    """

    def __init__(
        self,
        connection: Connection,
        settings: ClientSettings,
        begun: wire.BeginResult,
        give_back: Callable[[Connection], None],
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._begun = begun
        self._give_back = give_back
        self._over = begun.status is wire.PublicationStatus.PRESENT
        if self._over:
            give_back(connection)

    @property
    def key(self) -> str:
        """The artifact's key."""
        return self._begun.key

    @property
    def present(self) -> bool:
        """Whether the artifact was published before."""
        return self._begun.status is wire.PublicationStatus.PRESENT

    @property
    def manifest_sha256(self) -> str:
        """Digest of the present artifact's manifest; empty while it is being built."""
        return self._begun.manifest_sha256

    @property
    def payload_bytes(self) -> int:
        """Size of the present artifact's payload files; 0 while it is being built."""
        return self._begun.payload_bytes

    @contextmanager
    def payload(self, name: str, size: int, sha256: str = "") -> Iterator[_StreamedFile]:
        """See `ArtifactWriter.payload`."""
        with self._file(name, wire.FileKind.PAYLOAD, size, sha256) as file:
            yield file

    @contextmanager
    def asset(self, path: str, size: int, sha256: str = "") -> Iterator[_StreamedFile]:
        """See `ArtifactWriter.asset`."""
        with self._file(path, wire.FileKind.ASSET, size, sha256) as file:
            yield file

    @contextmanager
    def tensors(self, name: str, specs: tuple[TensorSpec, ...]) -> Iterator[TensorFile]:
        """See `ArtifactWriter.tensors`; the header is laid out here, as a local store does it."""
        with tensor_file(name, specs, self.payload) as file:
            yield file

    def keep_alive(self) -> None:
        """See `PatientWriter`: the agent's deadline runs between requests, and this is one."""
        self._require_building()
        self._ask("declare", wire.DeclareParams(()))

    def finalize(
        self, metadata: ProductionMetadata, *, expected_manifest_sha256: str = ""
    ) -> wire.FinalizeResult:
        """Publish what was streamed; on return every reader on the node can see it.

        Raises:
            WeightLeaseError: nothing was published, except that a broken connection
                (`AgentUnreachableError.broken`) leaves it open.

        """
        params = wire.FinalizeParams(
            producer_schema=metadata.producer_schema,
            restorer_schema=metadata.restorer_schema,
            format_metadata=metadata.format_metadata,
            expected_manifest_sha256=expected_manifest_sha256,
        )
        self._require_building()
        self._over = True
        try:
            result, _ = self._connection.request(
                "finalize", params, wire.FinalizeResult, self._settings.work_timeout
            )
        except BaseException:
            self._connection.close()
            raise
        self._give_back(self._connection)
        return result

    def abort(self) -> None:
        """Publish nothing; idempotent. The agent forgets what was streamed."""
        if self._over:
            return
        self._over = True
        # Best effort: a closed connection aborts as well, only not before this returns.
        with suppress(WeightLeaseError):
            self._connection.request("abort", wire.Empty(), wire.Empty, _ABORT_SECONDS)
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.abort()

    @contextmanager
    def _file(
        self, name: str, kind: wire.FileKind, size: int, sha256: str
    ) -> Iterator[_StreamedFile]:
        self._require_building()
        declaration = wire.FileDeclaration(name, kind, size, sha256)
        self._ask("declare", wire.DeclareParams((declaration,)))
        self._ask("open_file", wire.OpenFileParams(name, kind))
        file = _StreamedFile(self._connection, self._settings.work_timeout, name, size)
        try:
            yield file
            file.finish()
        except BaseException:
            # The agent still waits for this file's bytes: only an abort can follow.
            self.abort()
            raise

    def _ask(self, method: str, params: wire.DeclareParams | wire.OpenFileParams) -> None:
        self._connection.request(method, params, wire.Empty, self._settings.work_timeout)

    def _require_building(self) -> None:
        if self._over:
            raise production_failure(f"the publication of {self.key} is over; begin another one")


class _StreamedFile:
    """A `FileWriter` whose bytes go straight from the caller's memory into the socket."""

    def __init__(self, connection: Connection, timeout: float, name: str, size: int) -> None:
        self._connection = connection
        self._timeout = timeout
        self._name = name
        self._size = size
        self._written = 0

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        if self._written + view.nbytes > self._size:
            raise production_failure(
                f"{self._name!r} was declared with {self._size} bytes and gets more"
            )
        self._written += view.nbytes
        for start in range(0, view.nbytes, wire.MAX_WRITE_BYTES):
            chunk = view[start : start + wire.MAX_WRITE_BYTES]
            deadline = time.monotonic() + self._timeout
            self._connection.send("write", wire.WriteParams(chunk.nbytes), deadline, chunk)

    def finish(self) -> None:
        if self._written != self._size:
            raise production_failure(
                f"{self._name!r} was declared with {self._size} bytes and got {self._written}"
            )
        result, _ = self._connection.request(
            "close_file", wire.Empty(), wire.CloseFileResult, self._timeout
        )
        if result.size != self._size:
            raise production_failure(
                f"the agent wrote {result.size} of the {self._size} bytes of {self._name!r}"
            )
