"""Who is at a volume's socket, and who at the driver's: the socket itself says it.

Only the pod that a volume was made for has its folder, so whoever connects there is that pod; a
token is not asked for and not looked at. The driver's socket lies in a folder that the agent's uid
and root alone can enter, and root is what the driver runs as.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.lease_record import HolderKind
from weightlease.unix_socket import Credentials
from weightlease_node_agent.peers import Peer

DRIVER_ACCOUNT = "csi-driver"


@dataclass(frozen=True)
class PodSocket:
    """Everybody at this socket is one pod."""

    peer: Peer

    async def authenticate(self, credentials: Credentials, token: str) -> Peer:
        del token
        return replace(self.peer, credentials=credentials)


@dataclass(frozen=True)
class DriverSocket:
    """Root, and nobody else, is the driver."""

    allowed: frozenset[int]
    node: str

    async def authenticate(self, credentials: Credentials, token: str) -> Peer:
        del token
        if credentials.uid not in self.allowed:
            raise WeightLeaseError.of(
                Stage.ACCESS,
                FailureCode.PERMISSION_DENIED,
                f"uid {credentials.uid} is not the CSI driver",
            )
        return Peer(HolderKind.UID, DRIVER_ACCOUNT, self.node, credentials)
