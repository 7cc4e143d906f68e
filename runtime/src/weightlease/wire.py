"""The socket protocol between the node agent and its peers, version 1.

Frame (Unix stream socket):

    u32 big-endian length | JSON object, at most 1 MiB
    SCM_RIGHTS: at most 64 descriptors, attached to the frame's first byte; the object's
    "fds" says how many of the descriptors received so far belong to this frame

    request   {"id": 7, "method": "acquire", "params": {…}}
    reply     {"id": 7, "result": {…}, "fds": 3}
    more fds  {"id": 7, "more": true, "fds": 64}     repeated after the reply until
                                                     result.fd_count have arrived
    error     {"id": 7, "error": {stage, code, retryable, message, details}}
    raw bytes exactly `nbytes` follow a `write` request; nothing else is ever raw

The first request is `hello`. Requests of one connection are answered in order. Three fates:
bytes that are not this protocol drop the connection (the peer alone suffers); a request that may
not or cannot be done gets an error reply; a broken invariant of the agent ends its process.

    method              params                                   result
    hello               versions, token, client                  HelloResult
    acquire             AcquireParams                            AcquireResult + fds
    release             lease_id                                 {}   (the close of the fds ends it)
    begin_publication   BeginParams                              BeginResult
    declare             DeclareParams, as often as needed        {}
    open_file           name, kind                               {}
    write               nbytes, then the bytes                   no reply; an error ends it
    close_file          {}                                       CloseFileResult
    finalize            FinalizeParams                           FinalizeResult
    abort               {}                                       {}
    inspect             InspectParams                            InspectResult
    cleanup             key                                      CleanupReply
    publish_volume      PublishVolumeParams                      PublishVolumeResult
    unpublish_volume    volume_id                                {}
    list_volumes        {}                                       ListVolumesResult

The last three are the CSI driver's alone, on a socket of its own.

Descriptors of an acquire, in order: manifest.json, the lease file, then every payload file in
manifest order, then (with `assets`) every asset in manifest order.
"""

from __future__ import annotations

import struct
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from weightlease.errors import Failure, ProtocolError

PROTOCOL_VERSION = 1
SUPPORTED_VERSIONS = (1,)
MAX_FRAME_BYTES = 1024 * 1024
MAX_FDS_PER_FRAME = 64
MAX_WRITE_BYTES = 8 * 1024 * 1024
MAX_TOKEN_BYTES = 16 * 1024
MAX_DECLARED_FILES = 4096
MAX_DECLARED_ASSETS = 65536
HEADER = struct.Struct(">I")

ResultT = TypeVar("ResultT", bound=msgspec.Struct)


class FileKind(StrEnum):
    """What a streamed file is."""

    PAYLOAD = "payload"
    ASSET = "asset"


class PublicationStatus(StrEnum):
    """What `begin_publication` found: this peer builds, or the artifact is there already."""

    BUILD = "build"
    PRESENT = "present"


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Request(_Message, frozen=True):
    """One request; `params` is decoded by its method."""

    id: int
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")
    fds: int = 0


class Reply(_Message, frozen=True, omit_defaults=True):
    """One reply, error or continuation frame."""

    id: int
    result: msgspec.Raw = msgspec.Raw(b"")
    error: Failure | None = None
    more: bool = False
    fds: int = 0


class HelloParams(_Message, frozen=True):
    """`token` is a projected service-account token, or empty where the uid identifies the peer."""

    versions: tuple[int, ...]
    token: str = ""
    client: str = ""


class HelloResult(_Message, frozen=True):
    """`peer` is whom the agent takes the caller for; references default to `namespace`."""

    version: int
    agent_version: str
    node: str
    peer: str
    namespace: str


class AcquireParams(_Message, frozen=True):
    """Exactly one of `reference` and `key`; `validation` is a `policy.Validation`."""

    reference: str = ""
    key: str = ""
    validation: str = "manifest_and_metadata"
    assets: bool = True


class AcquireResult(_Message, frozen=True):
    """A granted lease; `fd_count` descriptors belong to it, `manifest_size` in bytes."""

    lease_id: str
    key: str
    storage_class: str
    domain_uuid: str
    publication_id: str
    manifest_sha256: str
    manifest_size: int
    validation: str
    fd_count: int


class ReleaseParams(_Message, frozen=True):
    """A nudge: the peer has closed this lease's descriptors."""

    lease_id: str


class BeginParams(_Message, frozen=True):
    """Ask to be the one producer of `identity`.

    `total_bytes` is everything that will be streamed, payload and assets; a producer that passes it
    is cut off. `wait_seconds` bounds how long to wait for another builder. `namespace` is honoured
    for peers that have none of their own (bare hosts).
    """

    identity: dict[str, Any]
    total_bytes: int
    wait_seconds: float = 600.0
    storage_class: str = "disk"
    namespace: str = ""


class BeginResult(_Message, frozen=True):
    """`key` always; the rest when the artifact is present already."""

    status: PublicationStatus
    key: str
    manifest_sha256: str = ""
    payload_bytes: int = 0


class FileDeclaration(_Message, frozen=True):
    """One file that will be streamed; `sha256` may be empty when the source does not know it."""

    name: str
    kind: FileKind
    size: int
    sha256: str = ""


class DeclareParams(_Message, frozen=True):
    """The next files of the publication."""

    files: tuple[FileDeclaration, ...]


class OpenFileParams(_Message, frozen=True):
    """Begin one declared file; its bytes follow in order by `write`."""

    name: str
    kind: FileKind


class WriteParams(_Message, frozen=True):
    """Announce `nbytes` raw bytes, at most MAX_WRITE_BYTES."""

    nbytes: int


class CloseFileResult(_Message, frozen=True):
    """What the agent hashed while it wrote."""

    size: int
    sha256: str


class FinalizeParams(_Message, frozen=True):
    """Publish what was streamed; the expectations come from the canary and may be empty."""

    producer_schema: str
    restorer_schema: str
    format_metadata: dict[str, Any]
    expected_manifest_sha256: str = ""


class FinalizeResult(_Message, frozen=True):
    """The published artifact."""

    key: str
    manifest_sha256: str
    artifact_content_sha256: str
    publication_id: str
    payload_bytes: int


class InspectParams(_Message, frozen=True):
    """One artifact by key, or every domain the peer may see."""

    key: str = ""


class InspectedArtifact(_Message, frozen=True):
    """One inventory entry; `leases` names the holders, `size_bytes` on disk."""

    key: str
    state: str
    storage_name: str
    size_bytes: int
    namespace: str
    storage_class: str
    reason: str = ""
    references: tuple[str, ...] = ()
    leases: tuple[str, ...] = ()


class InspectResult(_Message, frozen=True):
    """What the peer may see."""

    artifacts: tuple[InspectedArtifact, ...]
    truncated: bool = False


class CleanupParams(_Message, frozen=True):
    """Remove one artifact that nobody leases."""

    key: str
    namespace: str = ""


class CleanupReply(_Message, frozen=True):
    """`status` is a `reports.CleanupStatus`."""

    status: str
    freed_bytes: int = 0
    holders: tuple[str, ...] = ()


class PublishVolumeParams(_Message, frozen=True):
    """A pod's volume, as the kubelet describes it; an empty `artifact` asks for the socket alone.

    `target` is where the driver mounts it: kept for the driver, never used by the agent.
    """

    volume_id: str
    target: str
    namespace: str
    pod: str
    pod_uid: str
    service_account: str = ""
    artifact: str = ""


class VolumeContent(_Message, frozen=True):
    """Which directories of the store hold a volume's bytes; `assets` when there are some."""

    storage_class: str
    namespace: str
    key: str
    assets: bool


class PublishVolumeResult(_Message, frozen=True):
    """`handle` names the volume's folder below the volumes' directory."""

    handle: str
    content: VolumeContent | None = None


class UnpublishVolumeParams(_Message, frozen=True):
    """End a volume: its socket goes, its lease ends. One that is not there is no error."""

    volume_id: str


class ListedVolume(_Message, frozen=True):
    """A volume that the agent serves."""

    volume_id: str
    target: str


class ListVolumesResult(_Message, frozen=True):
    """All of them."""

    volumes: tuple[ListedVolume, ...]


class Empty(_Message, frozen=True):
    """No fields."""


# What each method decodes its params into; the names are the protocol's vocabulary.
METHOD_PARAMS: dict[str, type[msgspec.Struct]] = {
    "hello": HelloParams,
    "acquire": AcquireParams,
    "release": ReleaseParams,
    "begin_publication": BeginParams,
    "declare": DeclareParams,
    "open_file": OpenFileParams,
    "write": WriteParams,
    "close_file": Empty,
    "finalize": FinalizeParams,
    "abort": Empty,
    "inspect": InspectParams,
    "cleanup": CleanupParams,
    "publish_volume": PublishVolumeParams,
    "unpublish_volume": UnpublishVolumeParams,
    "list_volumes": Empty,
}
# What the driver's socket serves, and no other.
VOLUME_METHODS = frozenset({"publish_volume", "unpublish_volume", "list_volumes"})

_request_decoder = msgspec.json.Decoder(Request, strict=True)
_reply_decoder = msgspec.json.Decoder(Reply, strict=True)
_params_decoders = {
    name: msgspec.json.Decoder(params, strict=True) for name, params in METHOD_PARAMS.items()
}


def encode_frame(message: Request | Reply) -> bytes:
    """Length prefix and JSON.

    Raises:
        ProtocolError: the message is larger than a frame may be.

    """
    body = msgspec.json.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame of {len(body)} bytes exceeds {MAX_FRAME_BYTES}")
    return HEADER.pack(len(body)) + body


def encode_request(request_id: int, method: str, params: msgspec.Struct) -> bytes:
    """One request as a frame."""
    return encode_frame(Request(request_id, method, msgspec.Raw(msgspec.json.encode(params))))


def encode_result(request_id: int, result: msgspec.Struct, *, fds: int = 0) -> bytes:
    """One successful reply as a frame."""
    return encode_frame(Reply(request_id, msgspec.Raw(msgspec.json.encode(result)), fds=fds))


def encode_error(request_id: int, failure: Failure) -> bytes:
    """One error reply as a frame."""
    return encode_frame(Reply(request_id, error=failure))


def frame_length(header: bytes) -> int:
    """Body length of a frame in bytes.

    Raises:
        ProtocolError: an empty or oversized frame.

    """
    (length,) = HEADER.unpack(header)
    if not 2 <= length <= MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame of {length} bytes is outside 2..{MAX_FRAME_BYTES}")
    return int(length)


def decode_request(body: bytes) -> tuple[Request, msgspec.Struct]:
    """A request and its params, strictly.

    Raises:
        ProtocolError: not a request of this protocol.

    """
    try:
        request = _request_decoder.decode(body)
        decoder = _params_decoders.get(request.method)
        if decoder is None:
            raise ProtocolError(f"unknown method {request.method[:40]!r}")
        params: msgspec.Struct = decoder.decode(request.params)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"malformed request: {error}") from error
    if not 0 <= request.id < 2**53 or request.fds:
        raise ProtocolError("request id or descriptor count is out of range")
    return request, params


def decode_reply(body: bytes) -> Reply:
    """A reply frame, strictly.

    Raises:
        ProtocolError: not a reply of this protocol.

    """
    try:
        reply = _reply_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"malformed reply: {error}") from error
    if not 0 <= reply.fds <= MAX_FDS_PER_FRAME:
        raise ProtocolError(f"a frame with {reply.fds} descriptors exceeds {MAX_FDS_PER_FRAME}")
    return reply


def decode_result(reply: Reply, kind: type[ResultT]) -> ResultT:
    """The typed result of a reply without an error.

    Raises:
        ProtocolError: the result is not a `kind`.

    """
    try:
        return msgspec.json.decode(reply.result, type=kind, strict=True)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"malformed {kind.__name__}: {error}") from error
