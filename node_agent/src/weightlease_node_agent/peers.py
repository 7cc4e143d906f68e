"""Who is at the other end of a connection."""

from __future__ import annotations

from dataclasses import dataclass

from weightlease.lease_record import Holder, HolderKind
from weightlease.unix_socket import Credentials

BARE_NAMESPACE = "default"


@dataclass(frozen=True)
class Peer:
    """An authenticated peer.

    `expires_at` (seconds since the epoch) is when its token ends; `may_publish` is false while its
    token could not be confirmed lately.
    """

    kind: HolderKind
    namespace: str
    node: str
    credentials: Credentials
    pod: str = ""
    pod_uid: str = ""
    service_account: str = ""
    expires_at: float = float("inf")
    may_publish: bool = True

    @property
    def account(self) -> str:
        """What limits are counted for: the pod, or the process of a bare host."""
        if self.kind is HolderKind.POD:
            return f"pod {self.pod_uid}"
        return f"uid {self.credentials.uid} pid {self.credentials.pid}"

    @property
    def holder(self) -> Holder:
        """The peer as a lease file names it."""
        if self.kind is HolderKind.POD:
            return Holder(HolderKind.POD, self.namespace, self.pod, self.pod_uid, self.node)
        return Holder(
            HolderKind.UID,
            self.namespace,
            node=self.node,
            uid=self.credentials.uid,
            pid=self.credentials.pid,
        )

    def __str__(self) -> str:
        return str(self.holder)
