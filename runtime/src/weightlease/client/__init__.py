"""The socket's near side: `connect()` gives an `AgentStore`, which leases, publishes and inspects.

Nothing here opens a file of the store; descriptors arrive over the socket, read-only.
"""

from weightlease.client.agent_store import AgentStore, connect
from weightlease.client.connection import AgentUnreachableError
from weightlease.client.publication import Publication
from weightlease.client.settings import ClientSettings

__all__ = ["AgentStore", "AgentUnreachableError", "ClientSettings", "Publication", "connect"]
