"""Alerts fire when they should, and every query asks for metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from helm import CHART, Object, one
from prometheus import panel_queries, promtool
from weightlease_node_agent.metrics import Metrics as AgentMetrics
from weightlease_operator.metrics import Metrics as OperatorMetrics

ALERTS = CHART / "files" / "alerts.yaml"
DASHBOARD = CHART / "files" / "dashboard.json"
RULE_TESTS = sorted(Path(__file__).with_name("rules").glob("*.yaml"))


def series_of(registry: CollectorRegistry) -> set[str]:
    """Names as a scrape shows them: a counter's with _total, a histogram's with its three."""
    suffixes = {
        "counter": ("_total",),
        "histogram": ("_bucket", "_count", "_sum"),
        "info": ("_info",),
    }
    return {
        family.name + suffix
        for family in registry.collect()
        for suffix in suffixes.get(family.type, ("",))
    }


def asked_for(expression: str) -> set[str]:
    """Names of our metrics in an expression."""
    return set(re.findall(r"\bweightlease_[a-z_]+", expression))


@pytest.fixture(scope="module")
def known() -> set[str]:
    agent = AgentMetrics("0", "node").registry
    return series_of(agent) | series_of(OperatorMetrics(CollectorRegistry()).registry)


@pytest.fixture(scope="module")
def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.fixture(scope="module")
def queries() -> dict[str, str]:
    return panel_queries(json.loads(DASHBOARD.read_text()))


def test_every_alert_asks_for_metrics_that_exist(
    rules: list[dict[str, Any]], known: set[str]
) -> None:
    names = {name for rule in rules for name in asked_for(rule["expr"])}
    assert names
    assert names - known == set()


def test_every_panel_asks_for_metrics_that_exist(queries: dict[str, str], known: set[str]) -> None:
    names = {name for query in queries.values() for name in asked_for(query)}
    assert names - known == set()
    assert all(re.search(r"weightlease|Weightlease", query) for query in queries.values())


def test_every_alert_says_how_bad_it_is_and_what_to_do(rules: list[dict[str, Any]]) -> None:
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
        assert rule["annotations"].keys() == {"summary", "description"}, rule["alert"]


def test_promtool_accepts_the_rules() -> None:
    promtool("check", "rules", str(ALERTS))


def test_the_rules_in_the_cluster_are_those_of_the_file(everything: list[Object]) -> None:
    assert one(everything, "PrometheusRule")["spec"] == yaml.safe_load(ALERTS.read_text())


@pytest.mark.parametrize("path", RULE_TESTS, ids=lambda path: path.stem)
def test_alerts_fire_on_the_series_that_they_are_for(path: Path, tmp_path: Path) -> None:
    case = yaml.safe_load(path.read_text())
    case["rule_files"] = [str(ALERTS)]
    file = tmp_path / path.name
    file.write_text(yaml.safe_dump(case))
    promtool("test", "rules", str(file))


def test_every_alert_is_seen_to_fire_and_to_stay_silent(rules: list[dict[str, Any]]) -> None:
    fires: set[str] = set()
    silent: set[str] = set()
    for path in RULE_TESTS:
        for test in yaml.safe_load(path.read_text())["tests"]:
            for check in test["alert_rule_test"]:
                (fires if check.get("exp_alerts") else silent).add(check["alertname"])
    names = {rule["alert"] for rule in rules}
    assert fires == names
    assert silent == names


def test_every_panels_query_parses(queries: dict[str, str], tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": query}
        for number, query in enumerate(queries.values())
    ]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(queries)} rules found" in promtool("check", "rules", str(file))


def test_panels_have_titles_of_their_own_and_say_what_they_show() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    shown = [panel for panel in panels if panel["type"] != "row"]
    titles = [panel["title"] for panel in shown]
    assert len(titles) == len(set(titles)) > 10
    assert all(panel["description"] for panel in shown)
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells), panel["title"]
        taken |= cells


def test_grafanas_sidecar_gets_the_dashboard_whole(everything: list[Object]) -> None:
    config = one(everything, "ConfigMap")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert config["metadata"]["annotations"] == {"grafana_folder": "weights"}
    assert json.loads(config["data"]["weightlease.json"]) == json.loads(DASHBOARD.read_text())


def test_scrapes_keep_the_tenants_namespace_and_name_the_jobs(everything: list[Object]) -> None:
    jobs = set()
    for item in everything:
        if item["kind"] == "PodMonitor":
            assert item["metadata"]["labels"]["release"] == "prometheus"
            (endpoint,) = item["spec"]["podMetricsEndpoints"]
            assert (endpoint["port"], endpoint["honorLabels"]) == ("metrics", True)
            jobs |= {
                relabeling["replacement"]
                for relabeling in endpoint["relabelings"]
                if relabeling["targetLabel"] == "job"
            }
    selected = set(re.findall(r'job="([^"]+)"', ALERTS.read_text() + DASHBOARD.read_text()))
    assert jobs == {"weightlease-agent", "weightlease-operator"}
    assert {name.rstrip("\\") for name in selected} <= jobs


def test_monitoring_is_off_by_default(default: list[Object]) -> None:
    kinds = {item["kind"] for item in default}
    assert kinds.isdisjoint({"PodMonitor", "PrometheusRule", "ConfigMap", "NetworkPolicy"})
