"""A peer that speaks the socket protocol by hand, rightly or wrongly."""

from __future__ import annotations

import array
import os
import socket
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from weightlease import wire
from weightlease.errors import Failure
from weightlease.identity import WeightArtifactIdentity

ResultT = TypeVar("ResultT", bound=msgspec.Struct)


class RefusedError(Exception):
    """The agent answered with a failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class RawPeer:
    """One connection; every call waits at most `timeout` seconds."""

    def __init__(
        self, path: Path, *, hello: bool = True, token: str = "", timeout: float = 20.0
    ) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Blocking: with a timeout, a connect to a full backlog fails at once.
        self.socket.connect(str(path))
        self.socket.settimeout(timeout)
        self._next = 0
        self.fds: list[int] = []
        self.greeting: wire.HelloResult | None = None
        if hello:
            params = wire.HelloParams(wire.SUPPORTED_VERSIONS, token, "test")
            try:
                self.greeting = self.call("hello", params, wire.HelloResult)
            except BaseException:
                self.close()
                raise

    def send(self, method: str, params: msgspec.Struct, data: bytes = b"") -> int:
        self._next += 1
        self.socket.sendall(wire.encode_request(self._next, method, params) + data)
        return self._next

    def receive(self) -> wire.Reply:
        header = self._receive(wire.HEADER.size)
        return wire.decode_reply(self._receive(wire.frame_length(header)))

    def call(self, method: str, params: msgspec.Struct, kind: type[ResultT]) -> ResultT:
        request = self.send(method, params)
        reply = self.receive()
        assert reply.id == request
        if reply.error is not None:
            raise RefusedError(reply.error)
        return wire.decode_result(reply, kind)

    def acquire(self, key: str = "", reference: str = "") -> tuple[wire.AcquireResult, list[int]]:
        """A lease and its descriptors, which the caller closes."""
        params = wire.AcquireParams(reference, key)
        result = self.call("acquire", params, wire.AcquireResult)
        while len(self.fds) < result.fd_count:
            self.receive()
        taken, self.fds = self.fds, []
        return result, taken

    def begin(
        self,
        identity: WeightArtifactIdentity,
        total: int,
        *,
        wait: float = 20.0,
        storage_class: str = "disk",
    ) -> wire.BeginResult:
        params = wire.BeginParams(identity.to_dict(), total, wait, storage_class)
        return self.call("begin_publication", params, wire.BeginResult)

    def stream(
        self, name: str, data: bytes, kind: wire.FileKind = wire.FileKind.PAYLOAD
    ) -> wire.CloseFileResult:
        """Declare, open, write and close one file."""
        declaration = wire.FileDeclaration(name, kind, len(data))
        self.call("declare", wire.DeclareParams((declaration,)), wire.Empty)
        self.call("open_file", wire.OpenFileParams(name, kind), wire.Empty)
        for start in range(0, len(data), wire.MAX_WRITE_BYTES):
            chunk = data[start : start + wire.MAX_WRITE_BYTES]
            self.send("write", wire.WriteParams(len(chunk)), chunk)
        return self.call("close_file", wire.Empty(), wire.CloseFileResult)

    def finalize(self, identity: WeightArtifactIdentity, expected: str = "") -> wire.FinalizeResult:
        producer = identity.producer
        params = wire.FinalizeParams(
            producer.manifest_schema, producer.restorer_schema, {}, expected
        )
        return self.call("finalize", params, wire.FinalizeResult)

    def publish(
        self, identity: WeightArtifactIdentity, data: bytes, assets: dict[str, bytes] | None = None
    ) -> wire.FinalizeResult:
        """A whole publication of one payload file."""
        assets = assets or {}
        total = len(data) + sum(map(len, assets.values()))
        begun = self.begin(identity, total)
        assert begun.status is wire.PublicationStatus.BUILD
        self.stream("model.safetensors", data)
        for path, content in assets.items():
            self.stream(path, content, wire.FileKind.ASSET)
        return self.finalize(identity)

    def inspect(self, key: str = "") -> tuple[wire.InspectedArtifact, ...]:
        return self.call("inspect", wire.InspectParams(key), wire.InspectResult).artifacts

    def cleanup(self, key: str) -> wire.CleanupReply:
        return self.call("cleanup", wire.CleanupParams(key), wire.CleanupReply)

    def release(self, lease: wire.AcquireResult, fds: list[int]) -> None:
        for fd in fds:
            os.close(fd)
        self.call("release", wire.ReleaseParams(lease.lease_id), wire.Empty)

    def is_dropped(self) -> bool:
        """Waits for the agent to close; False when it says something instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.socket.close()
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk, ancillary, _, _ = self.socket.recvmsg(
                count - len(data), socket.CMSG_SPACE(4 * wire.MAX_FDS_PER_FRAME)
            )
            for _, _, rights in ancillary:
                received = array.array("i")
                received.frombytes(rights)
                self.fds.extend(received)
            if not chunk:
                raise ConnectionResetError("the agent closed the connection")
            data += chunk
        return data
