"""Values that tests of the node agent's decisions are made of."""

from __future__ import annotations

from typing import Any

from weightlease.api.weight_node import WantedArtifact
from weightlease.lease_record import Holder, HolderKind, LeaseRecord
from weightlease.names import StorageClass
from weightlease.reports import InventoryState
from weightlease.unix_socket import Credentials
from weightlease_node_agent.cluster import ClusterError, TokenVerdict
from weightlease_node_agent.domains import Place
from weightlease_node_agent.peers import Peer
from weightlease_node_agent.survey import Found

CREDENTIALS = Credentials(7, 1000)
PLACE = Place("team-a", StorageClass.DISK)
KEY, OTHER_KEY = "a" * 64, "b" * 64
ENTRY_ID = "team-a/minilm:model@"
_EXTRA = "authentication.kubernetes.io/"


def entry(**changes: Any) -> WantedArtifact:
    """What the operator wants on the node."""
    fields: dict[str, Any] = {
        "id": ENTRY_ID,
        "namespace": "team-a",
        "name": "minilm",
        "component": "model",
        "generation": 1,
        "storage_class": StorageClass.DISK,
        "job": "warm-minilm",
    }
    return WantedArtifact(**(fields | changes))


def found(key: str = KEY, **changes: Any) -> Found:
    """An artifact that the agent sees."""
    fields: dict[str, Any] = {
        "place": PLACE,
        "key": key,
        "state": InventoryState.READY,
        "storage_name": key,
        "size_bytes": 110,
        "payload_bytes": 100,
        "manifest_sha256": "c" * 64,
    }
    return Found(**(fields | changes))


def lease(pod: str = "server-0", since: str = "2026-01-01T00:00:00Z") -> LeaseRecord:
    return LeaseRecord(1, "0" * 32, KEY, Holder(HolderKind.POD, "team-a", pod), since)


def pod_peer(pod: str = "warm-minilm-x7k2p", namespace: str = "team-a", **changes: Any) -> Peer:
    return Peer(
        HolderKind.POD, namespace, "node-1", CREDENTIALS, pod=pod, pod_uid=f"uid-{pod}", **changes
    )


def uid_peer() -> Peer:
    return Peer(HolderKind.UID, "default", "node-1", CREDENTIALS)


def verdict(**changes: Any) -> TokenVerdict:
    """What the API server says of a good token."""
    extra = {
        f"{_EXTRA}pod-name": ["server-0"],
        f"{_EXTRA}pod-uid": ["uid-0"],
        f"{_EXTRA}node-name": ["node-1"],
    }
    fields: dict[str, Any] = {
        "authenticated": True,
        "username": "system:serviceaccount:team-a:default",
        "audiences": ("weightlease.io",),
        "extra": extra | changes.pop("claims", {}),
    }
    return TokenVerdict(**(fields | changes))


def claim(name: str, *values: str) -> dict[str, list[str]]:
    return {_EXTRA + name: list(values)}


class FakeReviewer:
    """Answers with `verdict`, or fails while it is None."""

    def __init__(self, answer: TokenVerdict | None) -> None:
        self.answer = answer
        self.calls = 0

    async def review_token(self, token: str, audience: str) -> TokenVerdict:
        self.calls += 1
        if self.answer is None:
            raise ClusterError("the API server is away")
        return self.answer
