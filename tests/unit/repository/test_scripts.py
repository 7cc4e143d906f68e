"""Every command that an installation puts on PATH leads to a function that exists."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

DISTRIBUTIONS = ("runtime", "operator", "node_agent")


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_every_command_leads_to_a_function(root: Path, distribution: str) -> None:
    project = tomllib.loads((root / distribution / "pyproject.toml").read_text())["project"]
    scripts = project["scripts"]
    assert scripts
    for name, target in scripts.items():
        assert callable(EntryPoint(name, target, "console_scripts").load())
