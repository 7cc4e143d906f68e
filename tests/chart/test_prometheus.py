"""The Prometheus that end-to-end tests use: what it scrapes, how it changes, what fires."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client import start_http_server

from prometheus import PrometheusServer, Target, panel_queries, pod_targets
from weightlease_node_agent.metrics import Metrics


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("0", "node-1")


@pytest.fixture
def address(metrics: Metrics) -> Iterator[str]:
    server, thread = start_http_server(0, addr="127.0.0.1", registry=metrics.registry)
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_what_a_target_reports_changes_what_a_query_answers(
    tmp_path: Path, metrics: Metrics, address: str
) -> None:
    metrics.active.labels("team-a").set(2)
    targets = {"weightlease-agent": [Target(address, {"node": "node-1"})]}
    with PrometheusServer(tmp_path, targets, interval="200ms") as server:
        (sample,) = server.wait_for('weightlease_agent_leases_active{namespace="team-a"} == 2')
        assert sample.labels["node"] == "node-1"
        assert sample.labels["job"] == "weightlease-agent"
        metrics.active.labels("team-a").set(5)
        server.wait_for('weightlease_agent_leases_active{namespace="team-a"} == 5')


def test_answers_name_each_series_and_leave_out_what_is_not_a_number(
    tmp_path: Path, metrics: Metrics, address: str
) -> None:
    metrics.active.labels("team-a").set(2)
    queries = {"leases": "sum by (namespace) (weightlease_agent_leases_active)", "none": "0 / 0"}
    with PrometheusServer(tmp_path, {"agents": [Target(address, {})]}, interval="200ms") as server:
        server.wait_for("weightlease_agent_leases_active")
        answers = server.answers(queries)
    assert answers == {"leases": {'{"namespace": "team-a"}': 2}, "none": {}}


def test_pods_with_an_address_are_targets_named_after_their_nodes() -> None:
    pods = [
        {
            "metadata": {"name": "agent-x"},
            "spec": {"nodeName": "node-1"},
            "status": {"podIP": "10.1.2.3"},
        },
        {"metadata": {"name": "agent-y"}, "spec": {"nodeName": "node-2"}, "status": {}},
    ]
    expected = Target("10.1.2.3:9470", {"node": "node-1", "pod": "agent-x"})
    assert pod_targets(pods, 9470) == [expected]


def test_a_target_that_moves_is_found_again(tmp_path: Path, address: str) -> None:
    nowhere = Target("127.0.0.1:1", {"node": "node-1"})
    with PrometheusServer(tmp_path, {"agents": [nowhere]}, interval="200ms") as server:
        server.wait_for('up{job="agents"} == 0')
        server.set_targets("agents", [Target(address, {"node": "node-1"})])
        server.wait_for('up{job="agents"} == 1')


def test_an_alert_of_a_rules_file_fires(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rule = {"alert": "Gone", "expr": 'up{job="agents"} == 0'}
    rules.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [rule]}]}))
    targets = {"agents": [Target("127.0.0.1:1", {})]}
    folder = tmp_path / "server"
    with PrometheusServer(folder, targets, rules=[rules], interval="200ms") as server:
        server.wait_for('ALERTS{alertname="Gone", alertstate="firing"}')
        assert server.firing() == {"Gone"}


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("groups: 1")
    with (
        pytest.raises(RuntimeError, match="prometheus did not start"),
        PrometheusServer(tmp_path / "server", {}, rules=[broken]),
    ):
        pass


def test_panels_are_queries_by_title_with_variables_filled_in() -> None:
    dashboard = {
        "panels": [
            {"title": "Row", "panels": [{"title": "Inner", "targets": [{"expr": "up"}]}]},
            {
                "title": "Two",
                "targets": [
                    {"refId": "A", "expr": 'rate(x{node=~"$node"}[$__rate_interval])'},
                    {"refId": "B", "expr": "${job}"},
                ],
            },
        ]
    }
    assert panel_queries(dashboard, window="30s") == {
        "Inner": "up",
        "Two [A]": 'rate(x{node=~".*"}[30s])',
        "Two [B]": ".*",
    }
