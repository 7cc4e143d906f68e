"""Frames: the bytes are frozen; what is not our protocol is refused before it costs anything."""

from __future__ import annotations

import msgspec
import pytest

from weightlease import wire
from weightlease.errors import Failure, FailureCode, ProtocolError, Stage


def body_of(frame: bytes) -> bytes:
    assert wire.frame_length(frame[:4]) == len(frame) - 4
    return frame[4:]


def test_a_request_frame_keeps_its_bytes() -> None:
    frame = wire.encode_request(7, "acquire", wire.AcquireParams(reference="minilm"))
    assert frame == (
        b"\x00\x00\x00\x7f"
        b'{"id":7,"method":"acquire","params":{"reference":"minilm","key":"",'
        b'"validation":"manifest_and_metadata","assets":true},"fds":0}'
    )


def test_every_method_decodes_its_own_params() -> None:
    for number, (method, kind) in enumerate(wire.METHOD_PARAMS.items()):
        example = {
            "hello": wire.HelloParams((1,)),
            "release": wire.ReleaseParams("a" * 32),
            "begin_publication": wire.BeginParams({}, 1),
            "declare": wire.DeclareParams((wire.FileDeclaration("a", wire.FileKind.ASSET, 1),)),
            "open_file": wire.OpenFileParams("a", wire.FileKind.PAYLOAD),
            "write": wire.WriteParams(1),
            "finalize": wire.FinalizeParams("p", "r", {}),
            "cleanup": wire.CleanupParams("a" * 64),
            "publish_volume": wire.PublishVolumeParams("v", "/t", "namespace", "pod", "uid"),
            "unpublish_volume": wire.UnpublishVolumeParams("v"),
        }.get(method)
        params = example if example is not None else kind()
        request, decoded = wire.decode_request(body_of(wire.encode_request(number, method, params)))
        assert (request.id, request.method, decoded) == (number, method, params)


def test_a_result_and_an_error_survive_the_round_trip() -> None:
    result = wire.CloseFileResult(3, "f" * 64)
    reply = wire.decode_reply(body_of(wire.encode_result(1, result, fds=2)))
    assert (reply.id, reply.fds, reply.error, reply.more) == (1, 2, None, False)
    assert wire.decode_result(reply, wire.CloseFileResult) == result
    failure = Failure(Stage.LOOKUP, FailureCode.LOCAL_MISS, False, "no such artifact", {"key": "x"})
    assert wire.decode_reply(body_of(wire.encode_error(2, failure))).error == failure


@pytest.mark.parametrize("length", [0, 1, wire.MAX_FRAME_BYTES + 1, 2**32 - 1])
def test_a_frame_of_impossible_length_is_refused_before_it_is_read(length: int) -> None:
    with pytest.raises(ProtocolError):
        wire.frame_length(wire.HEADER.pack(length))


def test_a_message_that_does_not_fit_a_frame_is_never_sent() -> None:
    with pytest.raises(ProtocolError, match="exceeds"):
        wire.encode_request(1, "hello", wire.HelloParams((1,), token="x" * wire.MAX_FRAME_BYTES))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b'{"id":1,"method":"no_such_method"}',
        b'{"id":1,"method":"acquire","params":[]}',
        b'{"id":1,"method":"acquire","params":{"surprise":1}}',
        b'{"id":1,"method":"acquire","params":{"assets":"yes"}}',
        b'{"id":true,"method":"abort"}',
        b'{"id":-1,"method":"abort"}',
        b'{"id":9007199254740992,"method":"abort"}',
        b'{"id":1.5,"method":"abort"}',
        b'{"id":1,"method":"abort","fds":1}',
        b'{"id":1,"method":"abort","extra":0}',
        b'{"id":1,"method":"write","params":{"nbytes":1e3}}',
        b"[" * 100_000,
    ],
)
def test_what_is_not_a_request_is_a_protocol_error(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        wire.decode_request(body)


@pytest.mark.parametrize(
    "body", [b"{}", b'{"id":1,"fds":65}', b'{"id":1,"fds":-1}', b'{"id":1,"error":{}}', b"x"]
)
def test_what_is_not_a_reply_is_a_protocol_error(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        wire.decode_reply(body)


def test_a_result_of_another_type_is_a_protocol_error() -> None:
    reply = wire.Reply(1, msgspec.Raw(b'{"size":1}'))
    with pytest.raises(ProtocolError):
        wire.decode_result(reply, wire.CloseFileResult)
