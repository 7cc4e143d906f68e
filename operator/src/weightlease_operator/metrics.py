"""The operator's metrics: names, labels and help, nowhere else.

A label is on every sample of its metric. The registry is passed in, so that tests have their own.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

PREFIX = "weightlease_operator"
OUTCOMES = ("success", "conflict", "error")


class Metrics:
    """One instance per process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.reconcile_seconds = Histogram(
            f"{PREFIX}_reconcile_seconds",
            "How long one reconciliation took, by queue.",
            ["queue"],
            registry=registry,
            buckets=(0.005, 0.02, 0.1, 0.5, 2, 10, 60),
        )
        self.reconciles = Counter(
            f"{PREFIX}_reconciles",
            "Reconciliations, by queue and outcome.",
            ["queue", "outcome"],
            registry=registry,
        )
        self.queue_depth = Gauge(
            f"{PREFIX}_queue_depth", "Names that wait, by queue.", ["queue"], registry=registry
        )
        self.artifacts = Gauge(
            f"{PREFIX}_artifacts",
            "WeightArtifacts by condition and its status.",
            ["condition", "status"],
            registry=registry,
        )
        self.jobs_created = Counter(
            f"{PREFIX}_jobs_created", "Prewarm Jobs created.", registry=registry
        )
        self.job_failures = Counter(
            f"{PREFIX}_job_failures",
            "Failures of prewarm Jobs, by reason, as they enter a status.",
            ["reason"],
            registry=registry,
        )
        self.writes = Counter(
            f"{PREFIX}_writes",
            "Writes to the API server, by kind and verb.",
            ["kind", "verb"],
            registry=registry,
        )
        self.last_resync = Gauge(
            f"{PREFIX}_last_resync_timestamp_seconds",
            "When everything was last listed, in seconds since 1970.",
            registry=registry,
        )
        self.leading = Gauge(
            f"{PREFIX}_leading",
            "Whether this operator leads (1) or stands by (0).",
            registry=registry,
        )
        for queue in ("artifacts", "nodes"):
            self.queue_depth.labels(queue=queue).set(0)
            for outcome in OUTCOMES:
                self.reconciles.labels(queue=queue, outcome=outcome)
