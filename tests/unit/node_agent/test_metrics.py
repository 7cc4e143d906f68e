"""What a scrape shows before anything has happened."""

from __future__ import annotations

from weightlease.names import StorageClass
from weightlease_node_agent.domains import Place
from weightlease_node_agent.metrics import Metrics
from weightlease_node_agent.survey import Survey


def test_a_namespaces_lease_counters_are_there_before_its_first_lease() -> None:
    metrics = Metrics("1.0.0", "node")
    name, labels = "weightlease_agent_leases_granted_total", {"namespace": "team"}
    assert metrics.registry.get_sample_value(name, labels) is None
    metrics.observe(Survey(store_bytes=((Place("team", StorageClass.DISK), 10),)))
    assert metrics.registry.get_sample_value(name, labels) == 0
    ended = "weightlease_agent_leases_ended_total"
    assert metrics.registry.get_sample_value(ended, labels) == 0
