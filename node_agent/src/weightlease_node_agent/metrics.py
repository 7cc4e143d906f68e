"""Names of the agent's metrics, and the registry that holds them.

Labels are bounded: namespaces are those of existing domains, reasons are enumerations.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from weightlease_node_agent.ledger import Room
from weightlease_node_agent.survey import Survey

BUILD = "weightlease_agent_build"
LEASES_GRANTED = "weightlease_agent_leases_granted"
LEASES_ENDED = "weightlease_agent_leases_ended"
LEASES_ACTIVE = "weightlease_agent_leases_active"
LEASES_REFUSED = "weightlease_agent_leases_refused"
ACQUIRE_SECONDS = "weightlease_agent_acquire_seconds"
PUBLICATION_BYTES = "weightlease_agent_publication_bytes"
PUBLICATION_SECONDS = "weightlease_agent_publication_seconds"
PUBLICATIONS = "weightlease_agent_publications"
PUBLICATIONS_ACTIVE = "weightlease_agent_publications_active"
ARTIFACTS = "weightlease_agent_artifacts"
STORE_BYTES = "weightlease_agent_store_bytes"
FREE_BYTES = "weightlease_agent_free_bytes"
CONNECTIONS = "weightlease_agent_connections"
PEERS_DROPPED = "weightlease_agent_peers_dropped"
TOKEN_REVIEWS = "weightlease_agent_token_reviews"  # noqa: S105 - a metric's name
RESERVED_BYTES = "weightlease_agent_reserved_bytes"
BUDGET_BYTES = "weightlease_agent_budget_bytes"
AVAILABLE_BYTES = "weightlease_agent_available_bytes"
EVICTABLE_BYTES = "weightlease_agent_evictable_bytes"
CAPACITY_REFUSED = "weightlease_agent_capacity_refused"
EVICTED = "weightlease_agent_artifacts_evicted"
EVICTED_BYTES = "weightlease_agent_evicted_bytes"
SWEPT = "weightlease_agent_artifacts_swept"
STATUS_WRITES = "weightlease_agent_status_writes"
SPEC_SYNCED = "weightlease_agent_spec_synced"
LEADER = "weightlease_agent_leader"

NAMESPACE = "namespace"
REASON = "reason"
STATE = "state"
STORAGE_CLASS = "storage_class"
LIMIT = "limit"
OUTCOME = "outcome"

PUBLISHED = "published"
_ACQUIRE_BUCKETS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.02, 0.05, 0.1, 0.5, 2.0, 10.0, 60.0)
_PUBLICATION_BUCKETS = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)


class Metrics:
    """The agent's metrics in a registry of their own."""

    def __init__(self, version: str, node: str) -> None:
        self.registry = registry = CollectorRegistry()
        Info(BUILD, "Version of this agent", registry=registry).info(
            {"version": version, "node": node}
        )
        self.granted = Counter(LEASES_GRANTED, "Leases granted", [NAMESPACE], registry=registry)
        self.ended = Counter(LEASES_ENDED, "Leases seen to end", [NAMESPACE], registry=registry)
        self.active = Gauge(LEASES_ACTIVE, "Leases held now", [NAMESPACE], registry=registry)
        self.refused = Counter(
            LEASES_REFUSED, "Acquires answered by a failure", [REASON], registry=registry
        )
        self.acquire_seconds = Histogram(
            ACQUIRE_SECONDS,
            "From an acquire's last byte to its reply handed to the kernel",
            buckets=_ACQUIRE_BUCKETS,
            registry=registry,
        )
        self.publication_bytes = Counter(
            PUBLICATION_BYTES, "Bytes taken from producers", registry=registry
        )
        self.publication_seconds = Histogram(
            PUBLICATION_SECONDS,
            "From begin to the end of a publication, by how it ended",
            [OUTCOME],
            buckets=_PUBLICATION_BUCKETS,
            registry=registry,
        )
        self.publications = Counter(
            PUBLICATIONS, "Publications by how they ended", [OUTCOME], registry=registry
        )
        self.publications_active = Gauge(
            PUBLICATIONS_ACTIVE, "Publications that stream now", registry=registry
        )
        self.artifacts = Gauge(
            ARTIFACTS, "Artifacts by state", [STORAGE_CLASS, STATE], registry=registry
        )
        self.store_bytes = Gauge(
            STORE_BYTES, "Bytes of all domains of a class", [STORAGE_CLASS], registry=registry
        )
        self.free_bytes = Gauge(
            FREE_BYTES, "Free bytes of a class's filesystem", [STORAGE_CLASS], registry=registry
        )
        self.connections = Gauge(CONNECTIONS, "Open connections", registry=registry)
        self.dropped = Counter(
            PEERS_DROPPED, "Connections ended by the agent", [REASON], registry=registry
        )
        self.reviews = Counter(TOKEN_REVIEWS, "Tokens judged", [OUTCOME], registry=registry)
        self.room = RoomMetrics(registry)
        self.swept = Counter(SWEPT, "Artifacts removed as unwanted", registry=registry)
        self.status_writes = Counter(
            STATUS_WRITES, "Status writes by outcome", [OUTCOME], registry=registry
        )
        self.spec_synced = Gauge(SPEC_SYNCED, "Whether the spec is current", registry=registry)
        self.leader = Gauge(LEADER, "Whether this agent sweeps and reports", registry=registry)

    def observe(self, survey: Survey) -> None:
        """Take over what the domains hold now."""
        self.artifacts.clear()
        states = Tally(
            (found.place.storage_class, "denied" if found.denied else str(found.state))
            for found in survey.found
        )
        for (storage_class, state), count in states.items():
            self.artifacts.labels(str(storage_class), state).set(count)
        sizes: Tally[str] = Tally()
        for place, size in survey.store_bytes:
            sizes[str(place.storage_class)] += size
            # A counter that appears at 1 has no rate: a namespace's first lease counts from 0.
            self.granted.labels(place.namespace)
            self.ended.labels(place.namespace)
        for root in survey.roots:
            name = str(root.storage_class)
            self.store_bytes.labels(name).set(sizes[name])
            self.free_bytes.labels(name).set(root.free_bytes)


class RoomMetrics:
    """What there is room for, what was refused and what was removed to make room."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reserved_bytes = Gauge(
            RESERVED_BYTES,
            "Bytes that publications in progress may still write",
            [STORAGE_CLASS],
            registry=registry,
        )
        self.budget_bytes = Gauge(
            BUDGET_BYTES,
            "What artifacts of a class may take together, 0 without a budget",
            [STORAGE_CLASS],
            registry=registry,
        )
        self.available_bytes = Gauge(
            AVAILABLE_BYTES,
            "What the next publication may take at most",
            [STORAGE_CLASS],
            registry=registry,
        )
        self.evictable_bytes = Gauge(
            EVICTABLE_BYTES,
            "Bytes that nothing refers to and nobody leases",
            [STORAGE_CLASS],
            registry=registry,
        )
        self.refused = Counter(
            CAPACITY_REFUSED, "Publications refused for want of room", [LIMIT], registry=registry
        )
        self.evicted = Counter(
            EVICTED, "Artifacts removed to make room", [STORAGE_CLASS], registry=registry
        )
        self.evicted_bytes = Counter(
            EVICTED_BYTES, "Bytes freed to make room", [STORAGE_CLASS], registry=registry
        )

    def observe(self, rooms: Iterable[Room]) -> None:
        """Take over the figures of every class."""
        for room in rooms:
            name = str(room.storage_class)
            self.reserved_bytes.labels(name).set(room.reserved)
            self.budget_bytes.labels(name).set(room.budget)
            self.available_bytes.labels(name).set(room.available)
            self.evictable_bytes.labels(name).set(room.evictable)
