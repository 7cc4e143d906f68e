"""The far end of a client's socket, saying exactly what a test tells it to say."""

from __future__ import annotations

import array
import os
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from small_artifact import SmallArtifact
from weightlease import wire

HELLO = wire.HelloResult(1, "0.1.0", "node-1", "uid 0", "team-a")


class Peer:
    """One accepted connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def any_request(self) -> tuple[wire.Request, msgspec.Struct]:
        return wire.decode_request(self.read(wire.frame_length(self.read(4))))

    def request(self, method: str) -> tuple[int, msgspec.Struct]:
        """The next request, which must be `method`: its id and params."""
        request, params = self.any_request()
        assert request.method == method, request.method
        return request.id, params

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        sent = self.socket.sendmsg([data], rights)
        if sent < len(data):
            self.socket.sendall(data[sent:])

    def hello(self) -> wire.HelloParams:
        request_id, params = self.request("hello")
        assert isinstance(params, wire.HelloParams)
        self.send(wire.encode_result(request_id, HELLO))
        return params

    def answer(self, method: str, result: msgspec.Struct) -> msgspec.Struct:
        request_id, params = self.request(method)
        self.send(wire.encode_result(request_id, result))
        return params

    def grant(self, artifact: SmallArtifact, *, per_frame: int = 64, **changes: object) -> None:
        """Answer an acquire with a real lease on `artifact`."""
        request_id, _ = self.request("acquire")
        fds = lease_descriptors(artifact)
        granted = grant(artifact, len(fds), **changes)
        first = fds[:per_frame]
        try:
            self.send(wire.encode_result(request_id, granted, fds=len(first)), first)
            for start in range(per_frame, len(fds), per_frame):
                part = fds[start : start + per_frame]
                self.send(wire.encode_frame(wire.Reply(request_id, more=True, fds=len(part))), part)
        finally:
            for fd in fds:
                os.close(fd)

    def answer_abort_after_writes(self) -> None:
        """Take the writes that are still on their way and answer the abort behind them."""
        while True:
            request, params = self.any_request()
            if not isinstance(params, wire.WriteParams):
                assert request.method == "abort", request.method
                return self.send(wire.encode_result(request.id, wire.Empty()))
            self.read(params.nbytes)

    def wait_for_close(self) -> None:
        while self.socket.recv(65536):
            pass


def lease_descriptors(artifact: SmallArtifact) -> list[int]:
    """Descriptors of an acquire in the protocol's order."""
    (artifact.folder / "manifest.json").write_bytes(artifact.manifest.canonical_bytes)
    payloads, assets, lock = artifact.descriptors()
    manifest = os.open(artifact.folder / "manifest.json", os.O_RDONLY | os.O_CLOEXEC)
    return [manifest, lock, *payloads, *assets]


def grant(artifact: SmallArtifact, fd_count: int, **changes: object) -> wire.AcquireResult:
    granted = wire.AcquireResult(
        lease_id="0" * 32,
        key=artifact.manifest.artifact_key,
        storage_class="disk",
        domain_uuid="domain",
        publication_id="publication",
        manifest_sha256="0" * 64,
        manifest_size=len(artifact.manifest.canonical_bytes),
        validation="manifest_and_metadata",
        fd_count=fd_count,
    )
    return msgspec.structs.replace(granted, **changes)


class ScriptedAgent:
    """Listens at `path`; each accepted connection is played by the next of `scripts`."""

    def __init__(self, path: Path, *scripts: Callable[[Peer], None]) -> None:
        self.path = str(path)
        self._scripts = scripts
        self._failures: list[BaseException] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        for script in self._scripts:
            connection, _ = self._listener.accept()
            with connection:
                try:
                    script(Peer(connection))
                except (EOFError, ConnectionError):
                    pass
                except BaseException as error:  # noqa: BLE001 - shown by the test's thread
                    self._failures.append(error)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            # The script may wait for a client that has given up.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=20)
        self._listener.close()
        os.unlink(self.path)
        if error is None and self._failures:
            raise self._failures[0]
        assert not self._thread.is_alive() or error is not None
