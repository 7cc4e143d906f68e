"""What the agent needs of Kubernetes, as roles; `gateway` is the real one, tests have a fake.

ClusterError          the API server did not answer, or not as expected; trying again can help
└── ClusterGoneError  what was asked for does not exist
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from weightlease.api.weight_node import WeightNode


class ClusterError(Exception):
    """A call to the API server failed; the text is safe to log."""


class ClusterGoneError(ClusterError):
    """The object does not exist."""


@dataclass(frozen=True)
class TokenVerdict:
    """The API server's answer to a TokenReview; `extra` maps a claim to its values."""

    authenticated: bool
    username: str = ""
    audiences: tuple[str, ...] = ()
    extra: dict[str, list[str]] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class NodeSeen:
    """The current WeightNode of this node, or None: there is none."""

    node: WeightNode | None


@dataclass(frozen=True)
class WatchLost:
    """The watch broke; what was seen last may be stale until the next `NodeSeen`."""

    why: str


NodeEvent = NodeSeen | WatchLost


class TokenReviewer(Protocol):
    """Asks who a token belongs to."""

    async def review_token(self, token: str, audience: str) -> TokenVerdict:
        """Raises ClusterError."""


class Cluster(TokenReviewer, Protocol):
    """Everything this agent does with the API server."""

    def watch_node(self, name: str) -> AsyncIterator[NodeEvent]:
        """The WeightNode `name`, now and at each change, for ever; resumes by itself."""

    async def patch_status(self, name: str, status: dict[str, Any]) -> None:
        """Replace the status of a WeightNode; raises ClusterError, ClusterGoneError without one."""

    async def close(self) -> None:
        """Close connections."""
