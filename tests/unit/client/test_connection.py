"""The client against an agent that breaks the protocol in every way: typed, and nothing leaks."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from descriptors import open_descriptors
from scripted_agent import HELLO, Peer, ScriptedAgent, grant, lease_descriptors
from small_artifact import SmallArtifact
from weightlease import wire
from weightlease.client import AgentStore, AgentUnreachableError, ClientSettings, connect
from weightlease.errors import Failure, FailureCode, ProtocolError, Stage, WeightLeaseError

MISS = Failure(Stage.LOOKUP, FailureCode.LOCAL_MISS, retryable=True, message="not here")
Script = Callable[[Peer, SmallArtifact], None]


def store(path: Path, timeout: float = 10.0) -> AgentStore:
    return AgentStore(settings=ClientSettings(socket_path=str(path), timeout=timeout))


# ---- replies to an acquire that are not one ----


def half_a_length(peer: Peer, _: SmallArtifact) -> None:
    peer.request("acquire")
    peer.send(b"\0\0")


def half_a_body(peer: Peer, _: SmallArtifact) -> None:
    request_id, _params = peer.request("acquire")
    peer.send(wire.encode_result(request_id, wire.Empty())[:-3])


def an_endless_frame(peer: Peer, _: SmallArtifact) -> None:
    peer.request("acquire")
    peer.send(struct.pack(">I", wire.MAX_FRAME_BYTES + 1) + b"x" * 100)


def an_empty_frame(peer: Peer, _: SmallArtifact) -> None:
    peer.request("acquire")
    peer.send(struct.pack(">I", 0))


def no_json(peer: Peer, _: SmallArtifact) -> None:
    peer.request("acquire")
    peer.send(struct.pack(">I", 5) + b"hello")


def another_requests_reply(peer: Peer, _: SmallArtifact) -> None:
    request_id, _params = peer.request("acquire")
    peer.send(wire.encode_result(request_id + 1, wire.Empty()))


def an_older_requests_result(peer: Peer, _: SmallArtifact) -> None:
    request_id, _params = peer.request("acquire")
    peer.send(wire.encode_result(request_id - 1, wire.Empty()))


def another_methods_result(peer: Peer, _: SmallArtifact) -> None:
    peer.answer("acquire", HELLO)


def a_result_with_a_foreign_field(peer: Peer, artifact: SmallArtifact) -> None:
    request_id, _params = peer.request("acquire")
    body = wire.encode_result(request_id, grant(artifact, 3))[4:]
    body = body.replace(b'"lease_id"', b'"lease_iD"')
    peer.send(struct.pack(">I", len(body)) + body)


def no_descriptors(peer: Peer, artifact: SmallArtifact) -> None:
    peer.answer("acquire", grant(artifact, 5))


def declared_descriptors_that_did_not_come(peer: Peer, artifact: SmallArtifact) -> None:
    request_id, _params = peer.request("acquire")
    peer.send(wire.encode_result(request_id, grant(artifact, 5), fds=5))


def with_descriptors(artifact: SmallArtifact, use: Callable[[list[int]], None]) -> None:
    fds = lease_descriptors(artifact)
    try:
        use(fds)
    finally:
        for fd in fds:
            os.close(fd)


def surplus_descriptors(peer: Peer, artifact: SmallArtifact) -> None:
    request_id, _params = peer.request("acquire")
    reply = wire.encode_result(request_id, grant(artifact, 5), fds=5)
    with_descriptors(artifact, lambda fds: peer.send(reply, [*fds, fds[0]]))


def undeclared_descriptors(peer: Peer, artifact: SmallArtifact) -> None:
    request_id, _params = peer.request("acquire")
    reply = wire.encode_result(request_id, grant(artifact, 5))
    with_descriptors(artifact, lambda fds: peer.send(reply, fds))


def more_descriptors_than_the_result_counts(peer: Peer, artifact: SmallArtifact) -> None:
    request_id, _params = peer.request("acquire")
    reply = wire.encode_result(request_id, grant(artifact, 4), fds=5)
    with_descriptors(artifact, lambda fds: peer.send(reply, fds))


def a_negative_count(peer: Peer, artifact: SmallArtifact) -> None:
    request_id, _params = peer.request("acquire")
    peer.send(wire.encode_result(request_id, grant(artifact, -1)))


def an_absurd_count(peer: Peer, artifact: SmallArtifact) -> None:
    request_id, _params = peer.request("acquire")
    reply = wire.encode_result(request_id, grant(artifact, 10**6), fds=5)
    with_descriptors(artifact, lambda fds: peer.send(reply, fds))


def more_than_a_frame_may_carry(peer: Peer, artifact: SmallArtifact) -> None:
    request_id, _params = peer.request("acquire")
    reply = wire.encode_result(request_id, grant(artifact, 5), fds=5)
    with_descriptors(artifact, lambda fds: peer.send(reply, fds[:1] * 100))


def a_continuation_without_descriptors(peer: Peer, artifact: SmallArtifact) -> None:
    request_id, _params = peer.request("acquire")
    reply = wire.encode_result(request_id, grant(artifact, 5), fds=2)
    empty = wire.encode_frame(wire.Reply(request_id, more=True))
    with_descriptors(artifact, lambda fds: peer.send(reply, fds[:2]))
    peer.send(empty)


def a_continuation_of_another_request(peer: Peer, artifact: SmallArtifact) -> None:
    request_id, _params = peer.request("acquire")
    reply = wire.encode_result(request_id, grant(artifact, 5), fds=2)
    other = wire.encode_frame(wire.Reply(request_id + 7, more=True, fds=3))
    with_descriptors(artifact, lambda fds: peer.send(reply, fds[:2]))
    with_descriptors(artifact, lambda fds: peer.send(other, fds[2:]))


def an_error_with_descriptors(peer: Peer, artifact: SmallArtifact) -> None:
    request_id, _params = peer.request("acquire")
    reply = wire.encode_frame(wire.Reply(request_id, error=MISS, fds=5))
    with_descriptors(artifact, lambda fds: peer.send(reply, fds))


def a_reply_and_a_half(peer: Peer, artifact: SmallArtifact) -> None:
    request_id, _params = peer.request("acquire")
    peer.send(wire.encode_result(request_id, grant(artifact, 5), fds=3))


BROKEN: tuple[Script, ...] = (
    an_endless_frame,
    an_empty_frame,
    no_json,
    another_requests_reply,
    an_older_requests_result,
    another_methods_result,
    a_result_with_a_foreign_field,
    declared_descriptors_that_did_not_come,
    surplus_descriptors,
    more_descriptors_than_the_result_counts,
    a_negative_count,
    an_absurd_count,
    more_than_a_frame_may_carry,
    a_continuation_without_descriptors,
    a_continuation_of_another_request,
    an_error_with_descriptors,
    a_reply_and_a_half,
)


@pytest.mark.parametrize("script", BROKEN, ids=lambda script: script.__name__)
def test_a_broken_reply_is_a_protocol_error_and_no_descriptor_stays_open(
    socket_path: Path, artifact: SmallArtifact, script: Script, descriptors: list[str]
) -> None:
    def play(peer: Peer) -> None:
        peer.hello()
        script(peer, artifact)
        peer.wait_for_close()

    with ScriptedAgent(socket_path, play), store(socket_path) as agent:
        with pytest.raises(ProtocolError):
            agent.acquire(artifact.manifest.artifact_key)
        assert not agent._idle, "a broken connection is not used again"
    assert open_descriptors() == descriptors
    assert not artifact.is_leased()


CUT: tuple[Script, ...] = (half_a_length, half_a_body)


@pytest.mark.parametrize("script", CUT, ids=lambda script: script.__name__)
def test_an_acquire_that_was_cut_off_is_asked_again_once(
    socket_path: Path, artifact: SmallArtifact, script: Script
) -> None:
    def dies(peer: Peer) -> None:
        peer.hello()
        script(peer, artifact)

    def grants(peer: Peer) -> None:
        peer.hello()
        peer.grant(artifact)

    with ScriptedAgent(socket_path, dies, grants), store(socket_path) as agent:
        with agent.acquire("model") as lease:
            assert lease.tensor("a").tolist() == [1, 2]
        agent.close()


def test_an_acquire_is_not_asked_a_third_time(
    socket_path: Path, artifact: SmallArtifact, descriptors: list[str]
) -> None:
    def dies(peer: Peer) -> None:
        peer.hello()
        half_a_body(peer, artifact)

    with (
        ScriptedAgent(socket_path, dies, dies),
        store(socket_path) as agent,
        pytest.raises(AgentUnreachableError, match="closed the connection"),
    ):
        agent.acquire("model")
    assert open_descriptors() == descriptors


@pytest.mark.parametrize("script", [no_descriptors, undeclared_descriptors])
def test_an_agent_that_withholds_descriptors_is_left_at_the_deadline(
    socket_path: Path, artifact: SmallArtifact, script: Script, descriptors: list[str]
) -> None:
    def play(peer: Peer) -> None:
        peer.hello()
        script(peer, artifact)
        peer.wait_for_close()

    with ScriptedAgent(socket_path, play), store(socket_path, timeout=0.3) as agent:
        with pytest.raises(AgentUnreachableError, match="did not answer in time") as error:
            agent.acquire(artifact.manifest.artifact_key)
        assert not error.value.broken
        assert error.value.failure.retryable
    assert open_descriptors() == descriptors


def test_an_agent_that_never_says_hello_is_left_at_the_deadline(
    socket_path: Path, descriptors: list[str]
) -> None:
    with (
        ScriptedAgent(socket_path, Peer.wait_for_close),
        pytest.raises(AgentUnreachableError, match="did not answer in time"),
    ):
        store(socket_path, timeout=0.3).hello()
    assert open_descriptors() == descriptors


def test_an_agent_that_dies_at_hello_is_unreachable(
    socket_path: Path, descriptors: list[str]
) -> None:
    def dies(peer: Peer) -> None:
        peer.request("hello")

    with (
        ScriptedAgent(socket_path, dies),
        pytest.raises(AgentUnreachableError, match="closed the connection"),
    ):
        store(socket_path).hello()
    assert open_descriptors() == descriptors


def test_a_protocol_version_nobody_knows_is_refused(socket_path: Path) -> None:
    def future(peer: Peer) -> None:
        peer.answer("hello", wire.HelloResult(99, "", "", "", ""))
        peer.wait_for_close()

    with ScriptedAgent(socket_path, future), pytest.raises(ProtocolError, match="version 99"):
        store(socket_path).hello()


def test_an_error_reply_keeps_its_type_and_the_connection(
    socket_path: Path, artifact: SmallArtifact
) -> None:
    def play(peer: Peer) -> None:
        peer.hello()
        request_id, _ = peer.request("acquire")
        peer.send(wire.encode_error(request_id, MISS))
        peer.grant(artifact)

    with ScriptedAgent(socket_path, play), store(socket_path) as agent:
        with pytest.raises(WeightLeaseError) as error:
            agent.acquire("model")
        assert error.value.failure == MISS
        agent.acquire("model").close()


def test_hello_sends_the_token_as_it_is_at_that_moment(socket_path: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    tokens: list[str] = []

    def note(peer: Peer) -> None:
        tokens.append(peer.hello().token)

    settings = ClientSettings(socket_path=str(socket_path), token_file=str(token))
    with ScriptedAgent(socket_path, note, note), AgentStore(settings=settings) as agent:
        token.write_text("first\n")
        agent.hello()
        agent.close()
        token.write_text("second\n")
        agent.hello()
    assert tokens == ["first", "second"]


@pytest.mark.parametrize("content", [None, "x" * (wire.MAX_TOKEN_BYTES + 1), "\xff\xfe"])
def test_a_token_file_that_cannot_be_one_names_itself(
    socket_path: Path, tmp_path: Path, content: str | None, descriptors: list[str]
) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_text(content, encoding="latin-1")
    settings = ClientSettings(socket_path=str(socket_path), token_file=str(token))
    with (
        ScriptedAgent(socket_path, Peer.wait_for_close),
        pytest.raises(WeightLeaseError, match=str(token)),
    ):
        AgentStore(settings=settings).hello()
    assert open_descriptors() == descriptors


def test_a_socket_of_another_user_is_not_trusted(socket_path: Path, descriptors: list[str]) -> None:
    settings = ClientSettings(socket_path=str(socket_path), trusted_uids=frozenset({47000}))
    with (
        ScriptedAgent(socket_path, Peer.wait_for_close),
        pytest.raises(WeightLeaseError, match="belongs to uid") as error,
    ):
        AgentStore(settings=settings).hello()
    assert error.value.failure.code is FailureCode.UNAUTHENTICATED
    assert open_descriptors() == descriptors


def test_a_missing_socket_is_named_with_the_way_out(socket_path: Path) -> None:
    with pytest.raises(AgentUnreachableError, match=r"no socket at .*agent\.sock; a pod mounts"):
        connect(str(socket_path))


def test_a_socket_that_nobody_listens_on_is_told_apart(socket_path: Path) -> None:
    with ScriptedAgent(socket_path):
        os.link(socket_path, f"{socket_path}.old")
    with pytest.raises(AgentUnreachableError, match="nobody listens"):
        connect(f"{socket_path}.old")


def test_settings_come_from_arguments_then_environment_then_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WEIGHTLEASE_SOCKET", "/from/environment")
    monkeypatch.setenv("WEIGHTLEASE_TOKEN_FILE", "/token/environment")
    found = ClientSettings.from_environment()
    assert (found.socket_path, found.token_file) == ("/from/environment", "/token/environment")
    found = ClientSettings.from_environment("/argument", "/token/argument")
    assert (found.socket_path, found.token_file) == ("/argument", "/token/argument")
    monkeypatch.delenv("WEIGHTLEASE_SOCKET")
    monkeypatch.delenv("WEIGHTLEASE_TOKEN_FILE")
    found = ClientSettings.from_environment()
    assert (found.socket_path, found.token_file) == ("/run/weightlease/agent.sock", "")


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("inf"), float("nan")])
def test_an_unbounded_timeout_is_refused(timeout: float) -> None:
    with pytest.raises(WeightLeaseError, match="finite and positive"):
        ClientSettings(timeout=timeout)
