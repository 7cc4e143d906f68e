"""One version for everything that is released together."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

DISTRIBUTIONS = ("runtime", "operator", "node_agent", "csi_driver")


def project_of(root: Path, distribution: str) -> dict[str, Any]:
    text = (root / distribution / "pyproject.toml").read_text()
    project: dict[str, Any] = tomllib.loads(text)["project"]
    return project


@pytest.fixture
def version(root: Path) -> str:
    return str(project_of(root, "runtime")["version"])


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_distributions_share_one_version(root: Path, version: str, distribution: str) -> None:
    assert project_of(root, distribution)["version"] == version


@pytest.mark.parametrize(
    ("distribution", "library"),
    [
        ("operator", "weightlease[api]"),
        ("node_agent", "weightlease[api]"),
        ("csi_driver", "weightlease"),
    ],
)
def test_a_process_needs_the_library_of_its_own_version(
    root: Path, version: str, distribution: str, library: str
) -> None:
    assert f"{library}=={version}" in project_of(root, distribution)["dependencies"]


def test_the_changelog_starts_with_the_version(root: Path, version: str) -> None:
    headings = re.findall(r"^## \[(.+?)\]", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == version


def test_every_chart_carries_the_version(root: Path, version: str) -> None:
    charts = {path: yaml.safe_load(path.read_text()) for path in root.glob("charts/*/Chart.yaml")}
    stated = {(str(chart["version"]), str(chart["appVersion"])) for chart in charts.values()}
    assert stated <= {(version, version)}
