"""Tokens: judged once a minute, never repeated, trusted no longer than they last."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from node_agent_world import CREDENTIALS, FakeReviewer, claim, verdict
from weightlease.errors import FailureCode, WeightLeaseError
from weightlease.unix_socket import Credentials
from weightlease.wire import MAX_TOKEN_BYTES
from weightlease_node_agent.auth import (
    Review,
    TokenAuthenticator,
    UidAuthenticator,
    peer_of,
    token_expiry,
)
from weightlease_node_agent.cluster import TokenVerdict
from weightlease_node_agent.limits import Quota


def jwt(**claims: object) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.signature"


class World:
    """An authenticator, its reviewer and its clock."""

    def __init__(self, answer: TokenVerdict | None = None) -> None:
        self.now = 1000.0
        self.reviewer = FakeReviewer(answer or verdict())
        self.reviews: list[Review] = []
        self.authenticator = TokenAuthenticator(
            self.reviewer,
            "node-1",
            now=lambda: self.now,
            quota=Quota("reviews", 100, 2),
            count=self.reviews.append,
        )

    async def failure(self, token: str) -> WeightLeaseError:
        with pytest.raises(WeightLeaseError) as refused:
            await self.authenticator.authenticate(CREDENTIALS, token)
        return refused.value


async def test_a_verdict_is_kept_for_a_minute() -> None:
    world, token = World(), jwt(exp=9999)
    for second in (0, 30, 59):
        world.now = 1000.0 + second
        await world.authenticator.authenticate(CREDENTIALS, token)
    assert world.reviewer.calls == 1
    world.now = 1060.0
    await world.authenticator.authenticate(CREDENTIALS, token)
    assert world.reviewer.calls == 2


async def test_a_verdict_is_not_kept_past_the_tokens_end() -> None:
    world, token = World(), jwt(exp=1010)
    peer = await world.authenticator.authenticate(CREDENTIALS, token)
    assert peer.expires_at == 1010
    world.now = 1010.0
    await world.authenticator.authenticate(CREDENTIALS, token)
    assert world.reviewer.calls == 2


async def test_a_verdict_lasts_no_longer_when_the_clock_is_set_back() -> None:
    world, token = World(), jwt(exp=9999)
    await world.authenticator.authenticate(CREDENTIALS, token)
    world.now = 400.0
    await world.authenticator.authenticate(CREDENTIALS, token)
    assert world.reviewer.calls == 2


async def test_a_known_token_serves_without_the_api_server_but_publishes_nothing() -> None:
    world, token = World(), jwt(exp=2000)
    await world.authenticator.authenticate(CREDENTIALS, token)
    world.now, world.reviewer.answer = 1100.0, None
    stale = await world.authenticator.authenticate(CREDENTIALS, token)
    assert (stale.pod, stale.may_publish) == ("server-0", False)
    world.now = 2000.0
    failure = (await world.failure(token)).failure
    assert (failure.code, failure.retryable) == (FailureCode.UNAUTHENTICATED, True)
    assert world.reviews == [Review.CONFIRMED, Review.STALE, Review.UNAVAILABLE]


async def test_a_revoked_token_is_forgotten() -> None:
    world, token = World(), jwt(exp=9999)
    await world.authenticator.authenticate(CREDENTIALS, token)
    world.now, world.reviewer.answer = 1100.0, TokenVerdict(authenticated=False)
    await world.failure(token)
    world.reviewer.answer = None
    await world.failure(token)


async def test_a_refusal_never_repeats_the_token() -> None:
    world = World(TokenVerdict(authenticated=False, error="expired"))
    error = await world.failure(jwt(secret="hunter2"))
    assert "hunter2" not in str(error)
    assert "e30" not in str(error)
    assert "expired" in str(error)


@pytest.mark.parametrize("token", ["", "x" * (MAX_TOKEN_BYTES + 1)])
async def test_an_absent_or_huge_token_is_not_even_reviewed(token: str) -> None:
    world = World()
    assert (await world.failure(token)).failure.code is FailureCode.UNAUTHENTICATED
    assert world.reviewer.calls == 0


@pytest.mark.parametrize(
    ("answer", "code", "named"),
    [
        (verdict(authenticated=False, error="nope"), FailureCode.UNAUTHENTICATED, "nope"),
        (verdict(audiences=("vault",)), FailureCode.UNAUTHENTICATED, "vault"),
        (verdict(audiences=()), FailureCode.UNAUTHENTICATED, "weightlease.io"),
        (verdict(username="kubernetes-admin"), FailureCode.UNAUTHENTICATED, "kubernetes-admin"),
        (
            verdict(username="system:serviceaccount:x"),
            FailureCode.UNAUTHENTICATED,
            "service account",
        ),
        (verdict(claims=claim("pod-name")), FailureCode.UNAUTHENTICATED, "not bound to a pod"),
        (verdict(claims=claim("node-name", "far")), FailureCode.PERMISSION_DENIED, "far"),
        (verdict(claims=claim("node-name")), FailureCode.PERMISSION_DENIED, "''"),
    ],
)
def test_a_wrong_claim_is_named(answer: TokenVerdict, code: FailureCode, named: str) -> None:
    with pytest.raises(WeightLeaseError) as refused:
        peer_of(answer, "node-1", CREDENTIALS)
    assert refused.value.failure.code is code
    assert named in refused.value.failure.message


@pytest.mark.parametrize("token", ["", "a.b", "a.%.c", "a.e30.c", jwt(exp="soon"), jwt(exp=None)])
def test_a_token_without_a_readable_end_has_none(token: str) -> None:
    assert token_expiry(token) is None


async def test_bare_hosts_serve_the_allowed_uids_alone() -> None:
    authenticator = UidAuthenticator(frozenset({1000}), "node-1")
    assert (await authenticator.authenticate(CREDENTIALS, "")).namespace == "default"
    with pytest.raises(WeightLeaseError) as refused:
        await authenticator.authenticate(CREDENTIALS._replace(uid=1001), "")
    assert refused.value.failure.code is FailureCode.PERMISSION_DENIED


@pytest.mark.parametrize(("uid", "served"), [(1000, True), (0, False), (65534, False)])
async def test_a_peer_without_a_pid_is_judged_by_its_uid_alone(uid: int, served: bool) -> None:
    authenticator = UidAuthenticator(frozenset({1000}), "node-1")
    unknown = Credentials(pid=0, uid=uid)
    if served:
        assert (await authenticator.authenticate(unknown, "")).credentials == unknown
        return
    with pytest.raises(WeightLeaseError) as refused:
        await authenticator.authenticate(unknown, "")
    assert refused.value.failure.code is FailureCode.PERMISSION_DENIED


SAYS_WHO = """
import socket, sys
from weightlease.unix_socket import credentials_of
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    print("listening", flush=True)
    print(*credentials_of(listener.accept()[0]), flush=True)
"""


def test_a_peer_of_another_pid_namespace_has_no_pid(tmp_path: Path) -> None:
    place = str(tmp_path / "sock")
    apart = ("unshare", "--pid", "--fork", "--kill-child")
    with subprocess.Popen(
        [*apart, sys.executable, "-c", SAYS_WHO, place], stdout=subprocess.PIPE, text=True
    ) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "listening\n"
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(place)
            said = listener.stdout.readline().split()
    assert said == ["0", str(os.geteuid())]
