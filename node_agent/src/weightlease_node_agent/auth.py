"""Who a peer is: by a projected token that the API server confirms, or by the kernel's uid.

A verdict is kept by the token's sha256 until 60 s have passed or the token ends. While the API
server is away a verdict it once gave serves on until the token ends, but not for publishing. No
failure ever repeats the token.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

import msgspec

from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.lease_record import HolderKind
from weightlease.names import TOKEN_AUDIENCE
from weightlease.unix_socket import Credentials
from weightlease.wire import MAX_TOKEN_BYTES
from weightlease_node_agent.cluster import ClusterError, TokenReviewer, TokenVerdict
from weightlease_node_agent.limits import Quota
from weightlease_node_agent.peers import BARE_NAMESPACE, Peer

CACHE_SECONDS = 60.0
_CACHE_ENTRIES = 4096
_REVIEWS_AT_ONCE = 16
_USER_PREFIX = "system:serviceaccount:"
_EXTRA = "authentication.kubernetes.io/"


class Review(StrEnum):
    """How a token was judged; the values are metric labels."""

    CACHED = "cached"
    CONFIRMED = "confirmed"
    REFUSED = "refused"
    STALE = "stale"
    UNAVAILABLE = "unavailable"


class Authenticator(Protocol):
    """Turns credentials and a token into a peer."""

    async def authenticate(self, credentials: Credentials, token: str) -> Peer:
        """Raises WeightLeaseError: unauthenticated or permission_denied, naming what was wrong."""


@dataclass(frozen=True)
class UidAuthenticator:
    """Bare hosts: the kernel says which uid connects."""

    allowed: frozenset[int]
    node: str

    async def authenticate(self, credentials: Credentials, token: str) -> Peer:
        del token
        if credentials.uid not in self.allowed:
            raise WeightLeaseError.of(
                Stage.ACCESS,
                FailureCode.PERMISSION_DENIED,
                f"uid {credentials.uid} is not among the allowed uids of this agent; "
                "add it to WEIGHTLEASE_ALLOWED_UIDS",
            )
        return Peer(HolderKind.UID, BARE_NAMESPACE, self.node, credentials)


@dataclass(frozen=True)
class _Verdict:
    peer: Peer
    judged_at: float
    fresh_until: float


class TokenAuthenticator:
    """Kubernetes: the API server says which pod of this node a token belongs to."""

    def __init__(
        self,
        reviewer: TokenReviewer,
        node: str,
        *,
        now: Callable[[], float],
        quota: Quota,
        count: Callable[[Review], None] = lambda _: None,
    ) -> None:
        self._reviewer = reviewer
        self._node = node
        self._now = now
        self._quota = quota
        self._count = count
        self._verdicts: OrderedDict[bytes, _Verdict] = OrderedDict()
        self._asking = asyncio.Semaphore(_REVIEWS_AT_ONCE)

    async def authenticate(self, credentials: Credentials, token: str) -> Peer:
        if not token:
            raise unauthenticated(
                "hello carries no token; mount a projected token with audience "
                f"{TOKEN_AUDIENCE!r} and name its path in WEIGHTLEASE_TOKEN_FILE"
            )
        if len(token) > MAX_TOKEN_BYTES:
            raise unauthenticated(f"a token of {len(token)} bytes exceeds {MAX_TOKEN_BYTES}")
        digest = hashlib.sha256(token.encode()).digest()
        known = self._verdicts.get(digest)
        # A clock that was set back must not make a verdict last longer.
        if known is not None and known.judged_at <= self._now() < known.fresh_until:
            self._count(Review.CACHED)
            return replace(known.peer, credentials=credentials)
        origin = f"uid {credentials.uid} pid {credentials.pid}"
        with self._quota.held(origin):
            try:
                async with self._asking:
                    verdict = await self._reviewer.review_token(token, TOKEN_AUDIENCE)
            except ClusterError as error:
                return self._without_api_server(known, credentials, error)
        return self._judge(verdict, token, digest, credentials)

    def _judge(
        self, verdict: TokenVerdict, token: str, digest: bytes, credentials: Credentials
    ) -> Peer:
        try:
            peer = peer_of(verdict, self._node, credentials)
        except WeightLeaseError:
            self._verdicts.pop(digest, None)
            self._count(Review.REFUSED)
            raise
        now = self._now()
        expires = token_expiry(token)
        peer = replace(peer, expires_at=now + CACHE_SECONDS if expires is None else expires)
        self._verdicts[digest] = _Verdict(peer, now, min(peer.expires_at, now + CACHE_SECONDS))
        self._verdicts.move_to_end(digest)
        while len(self._verdicts) > _CACHE_ENTRIES:
            self._verdicts.popitem(last=False)
        self._count(Review.CONFIRMED)
        return peer

    def _without_api_server(
        self, known: _Verdict | None, credentials: Credentials, error: ClusterError
    ) -> Peer:
        if known is not None and self._now() < known.peer.expires_at:
            self._count(Review.STALE)
            return replace(known.peer, credentials=credentials, may_publish=False)
        self._count(Review.UNAVAILABLE)
        raise WeightLeaseError.of(
            Stage.ACCESS,
            FailureCode.UNAUTHENTICATED,
            f"the token can't be reviewed now: {error}",
            retryable=True,
        ) from error


def peer_of(verdict: TokenVerdict, node: str, credentials: Credentials) -> Peer:
    """The pod that a TokenReview confirms.

    Raises:
        WeightLeaseError: unauthenticated or permission_denied, naming the claim that is wrong.

    """
    if not verdict.authenticated:
        raise unauthenticated(
            f"the API server refuses the token: {verdict.error or 'no reason given'}"
        )
    if TOKEN_AUDIENCE not in verdict.audiences:
        raise unauthenticated(
            f"the token's audiences {list(verdict.audiences)} lack {TOKEN_AUDIENCE!r}; "
            "project a token with that audience"
        )
    namespace, _, account = verdict.username.removeprefix(_USER_PREFIX).partition(":")
    if not verdict.username.startswith(_USER_PREFIX) or not namespace or not account:
        raise unauthenticated(f"user {verdict.username!r} is not a service account")
    pod, pod_uid = _claim(verdict, "pod-name"), _claim(verdict, "pod-uid")
    if not pod or not pod_uid:
        raise unauthenticated("the token is not bound to a pod; use a projected volume")
    token_node = _claim(verdict, "node-name")
    if token_node != node:
        raise WeightLeaseError.of(
            Stage.ACCESS,
            FailureCode.PERMISSION_DENIED,
            f"the token's pod runs on node {token_node!r}, this agent serves {node!r}",
        )
    return Peer(
        HolderKind.POD,
        namespace,
        node,
        credentials,
        pod=pod,
        pod_uid=pod_uid,
        service_account=account,
    )


class _Claims(msgspec.Struct):
    exp: float


def token_expiry(token: str) -> float | None:
    """When a JWT that the API server has confirmed ends, in seconds since the epoch."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    payload = parts[1]
    try:
        decoded = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
        return msgspec.json.decode(decoded, type=_Claims).exp
    except (binascii.Error, msgspec.MsgspecError, UnicodeError, ValueError):
        return None


def unauthenticated(message: str) -> WeightLeaseError:
    """An unauthenticated failure."""
    return WeightLeaseError.of(Stage.ACCESS, FailureCode.UNAUTHENTICATED, message)


def _claim(verdict: TokenVerdict, name: str) -> str:
    values = verdict.extra.get(_EXTRA + name) or [""]
    return values[0]
