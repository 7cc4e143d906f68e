"""`python hack/docs/metrics_document.py FILE`: write the reference of all metrics.

The registries of the two processes are the source: names as a scrape shows them, labels and help.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from weightlease.names import AGENT_METRICS_PORT, OPERATOR_METRICS_PORT
from weightlease_node_agent.metrics import Metrics as AgentMetrics
from weightlease_operator.metrics import Metrics as OperatorMetrics

_SUFFIXES = {"counter": "_total", "info": "_info"}

_HEAD = """\
# Metrics

Written by `make generate` from the processes' own registries. A histogram has the series
`…_bucket`, `…_count` and `…_sum`.
[The chart](../charts/weightlease/README.md#monitoring) has alerts and a dashboard over them.
"""


def collectors(registry: CollectorRegistry) -> list[MetricWrapperBase]:
    """The metrics of a registry by name; the client has no public way to their labels."""
    found = {
        each
        for each in registry._collector_to_names  # noqa: SLF001 - see above
        if isinstance(each, MetricWrapperBase)
    }
    return sorted(found, key=_name)


def _name(collector: MetricWrapperBase) -> str:
    (family,) = collector.describe()
    return str(family.name) + _SUFFIXES.get(family.type, "")


def _labels(collector: MetricWrapperBase) -> list[str]:
    (family,) = collector.collect()
    if family.type == "info":
        return list(family.samples[0].labels)
    return list(collector._labelnames)  # noqa: SLF001 - see collectors


def _row(collector: MetricWrapperBase) -> str:
    (family,) = collector.describe()
    labels = ", ".join(f"`{label}`" for label in _labels(collector))
    help_text = family.documentation.rstrip(".")
    return f"| `{_name(collector)}` | {family.type} | {labels} | {help_text} |"


def _section(title: str, port: int, registry: CollectorRegistry) -> str:
    rows = "\n".join(map(_row, collectors(registry)))
    return (
        f"\n## {title}, port {port}\n\n| name | type | labels | what |\n|---|---|---|---|\n{rows}\n"
    )


def document() -> str:
    """The whole page, in Markdown."""
    agent = AgentMetrics(version="", node="").registry
    operator = OperatorMetrics(CollectorRegistry()).registry
    return (
        _HEAD
        + _section("Node agent", AGENT_METRICS_PORT, agent)
        + _section("Operator", OPERATOR_METRICS_PORT, operator)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="where the page goes")
    parser.parse_args().file.write_text(document(), encoding="utf-8")


if __name__ == "__main__":
    main()
