"""A real Prometheus for tests: scrapes given addresses, loads given rules, answers queries."""

from __future__ import annotations

import json
import math
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from mortal import MORTAL

PROMTOOL = "promtool"
_START_SECONDS = 30.0
_STOP_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One series of an instant query's answer."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Target:
    """What is scraped: `address` is host:port, `labels` come on top of job and instance."""

    address: str
    labels: Mapping[str, str]


def pod_targets(pods: Sequence[Mapping[str, Any]], port: int) -> list[Target]:
    """What to scrape of these pods, as `kubectl get -o json` lists them; one without an address is
    left out. Labels are those that the chart's PodMonitors set.
    """
    return [
        Target(
            f"{pod['status']['podIP']}:{port}",
            {"node": pod["spec"]["nodeName"], "pod": pod["metadata"]["name"]},
        )
        for pod in pods
        if pod.get("status", {}).get("podIP")
    ]


def panel_queries(dashboard: Mapping[str, Any], *, window: str = "1m") -> dict[str, str]:
    """Each query of a Grafana dashboard by its panel's title; `window` stands in for Grafana's own.

    A panel with several queries has one entry for each: `title [A]`, `title [B]`. Template
    variables stand for everything they could select.
    """
    queries: dict[str, str] = {}
    for panel in _panels(dashboard):
        targets = panel.get("targets", [])
        for target in targets:
            suffix = f" [{target['refId']}]" if len(targets) > 1 else ""
            expression = target["expr"].replace("$__rate_interval", window)
            queries[panel["title"] + suffix] = re.sub(r"\$\{?[a-z_]+\}?", ".*", expression)
    return queries


def _panels(holder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for panel in holder.get("panels", []):
        yield panel
        yield from _panels(panel)


class PrometheusServer:
    """A Prometheus with a data folder of its own, on a free port of the loopback.

    `targets` maps a job's name to what it scrapes; `set_targets` changes that while it runs, for
    pods come back under other addresses. `rules` are files in Prometheus' format.
    """

    def __init__(
        self,
        folder: Path,
        targets: Mapping[str, Sequence[Target]],
        *,
        rules: Sequence[Path] = (),
        interval: str = "1s",
    ) -> None:
        self._folder = folder
        self._targets = dict(targets)
        self._rules = [str(path) for path in rules]
        self._interval = interval
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""

    def __enter__(self) -> Self:
        program = shutil.which("prometheus")
        if program is None:
            raise RuntimeError("no prometheus on PATH: install Debian's package `prometheus`")
        self._folder.mkdir(parents=True, exist_ok=True)
        for job, targets in self._targets.items():
            self.set_targets(job, targets)
        (self._folder / "prometheus.yml").write_text(yaml.safe_dump(self._configuration()))
        port = _free_port()
        self._url = f"http://127.0.0.1:{port}"
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *MORTAL,
                    program,
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log,
                stderr=log,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop()

    def set_targets(self, job: str, targets: Sequence[Target]) -> None:
        """Scrape these from now on; Prometheus watches the file."""
        groups = [
            {"targets": [target.address], "labels": dict(target.labels)} for target in targets
        ]
        file = self._folder / f"{job}.targets.json"
        new = file.with_suffix(".new")
        new.write_text(json.dumps(groups))
        new.rename(file)

    def query(self, expression: str) -> list[Sample]:
        """The answer to an instant query: a vector, or a scalar as a sample without labels.

        Raises:
            urllib.error.HTTPError: the expression does not parse, or took too long.

        """
        data = self._get("query", query=expression)
        if data["resultType"] == "scalar":
            return [Sample({}, float(data["result"][1]))]
        return [Sample(item["metric"], float(item["value"][1])) for item in data["result"]]

    def wait_for(self, expression: str, *, seconds: float = 60.0) -> list[Sample]:
        """Ask again until the answer has a sample.

        Raises:
            TimeoutError: it still had none.

        """
        deadline = time.monotonic() + seconds
        while not (samples := self.query(expression)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no answer to {expression!r} within {seconds:g} s")
            time.sleep(0.2)
        return samples

    def answers(self, queries: Mapping[str, str]) -> dict[str, dict[str, float]]:
        """Each query's answer: value by series, labels written as one text.

        NaN is left out: it is what quantiles and ratios of nothing answer, and equals nothing, so
        that it would look like a change.
        """
        return {
            title: {
                json.dumps(dict(sample.labels), sort_keys=True): sample.value
                for sample in self.query(expression)
                if not math.isnan(sample.value)
            }
            for title, expression in queries.items()
        }

    def history(self, expression: str, *, seconds: float) -> dict[str, list[float]]:
        """What each series of `expression` was in each of the last `seconds`; NaN is left out."""
        now = time.time()
        data = self._get("query_range", query=expression, start=now - seconds, end=now, step=1)
        return {
            json.dumps(item["metric"], sort_keys=True): [
                float(value) for _, value in item["values"] if not math.isnan(float(value))
            ]
            for item in data["result"]
        }

    def firing(self) -> set[str]:
        """Names of the alerts that fire now."""
        alerts = self._get("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def _get(self, path: str, **parameters: str | float) -> dict[str, Any]:
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310 - loopback, http
            data: dict[str, Any] = json.load(response)["data"]
        return data

    def _configuration(self) -> dict[str, Any]:
        return {
            "global": {
                "scrape_interval": self._interval,
                "scrape_timeout": self._interval,
                "evaluation_interval": self._interval,
            },
            "rule_files": self._rules,
            "scrape_configs": [
                {
                    "job_name": job,
                    "honor_labels": True,
                    "file_sd_configs": [
                        {
                            "files": [str(self._folder / f"{job}.targets.json")],
                            "refresh_interval": "1s",
                        }
                    ],
                }
                for job in self._targets
            ],
        }

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                log = (self._folder / "prometheus.log").read_text(errors="replace")
                raise RuntimeError(f"prometheus did not start: {log[-2000:]}")
            try:
                with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5):  # noqa: S310
                    return
            except OSError:
                time.sleep(0.1)

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def promtool(*arguments: str) -> str:
    """Run promtool; returns what it printed.

    Raises:
        AssertionError: it found a fault, which the message holds.

    """
    finished = subprocess.run(
        [PROMTOOL, *arguments], check=False, capture_output=True, text=True, timeout=60
    )
    if finished.returncode != 0:
        raise AssertionError(finished.stdout + finished.stderr)
    return finished.stdout
