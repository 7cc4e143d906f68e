"""Who is at the other end of a connection."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import NamedTuple

from weightlease.lease_record import Holder, HolderKind

BARE_NAMESPACE = "default"
_UCRED = struct.Struct("3i")


class Credentials(NamedTuple):
    """What the kernel says of a peer; pid is 0 for a process of another PID namespace."""

    pid: int
    uid: int


def credentials_of(connection: socket.socket) -> Credentials:
    """SO_PEERCRED of a connected Unix socket."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(raw)
    return Credentials(pid, uid)


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
