"""What must not be imported is not, and the contracts that say so catch a breach."""

from __future__ import annotations

import configparser
import subprocess
import sys
from pathlib import Path

import pytest

# modules of the library that exist to talk to a heavy package
EXEMPT = ("api", "gpu", "integrations", "lease_tensors", "restore")

PROGRAM = """
import importlib, importlib.abc, pkgutil, sys

HEAVY = {"aiohttp", "cuda", "huggingface_hub", "kopf", "kubernetes", "numpy", "pydantic", "torch"}
EXEMPT = tuple(f"weightlease.{name}" for name in sys.argv[1:])

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HEAVY:
            raise ImportError(f"{name} must not be imported here")

sys.meta_path.insert(0, Refuse())
import weightlease

imported = 0
for module in pkgutil.walk_packages(weightlease.__path__, "weightlease.", onerror=str):
    exempt = any(module.name == name or module.name.startswith(f"{name}.") for name in EXEMPT)
    if not exempt and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
        imported += 1
assert imported > 5, imported
"""


def test_the_library_imports_without_heavy_packages() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, *EXEMPT], check=False, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr


# contract, then the file and the line that break it
BREACHES = {
    "library-layers": ("weightlease/errors.py", "import weightlease.store"),
    "distributions": ("weightlease_operator/plan.py", "import weightlease_node_agent.server"),
    "kopf": ("weightlease_operator/status.py", "import kopf"),
    "kubernetes": ("weightlease_node_agent/server.py", "import kubernetes.aio"),
    "accelerators": ("weightlease/store.py", "def later():\n    import torch"),
    "pydantic": ("weightlease/client.py", "import pydantic"),
    "hub": ("weightlease/names.py", "import huggingface_hub"),
    "grpc": ("weightlease_node_agent/volumes.py", "import grpc"),
}
GRANTED = {
    "weightlease_operator/wiring.py": "import kopf",
    "weightlease_operator/gateway.py": "import kubernetes.aio",
    "weightlease/lease_tensors.py": "import torch",
    "weightlease/api.py": "import pydantic",
    "weightlease/source.py": "import huggingface_hub",
}
PACKAGES = (
    "weightlease",
    "weightlease_operator",
    "weightlease_node_agent",
    "weightlease_csi_driver",
)
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def contract_names(root: Path) -> dict[str, str]:
    """Returns the name under which each contract is reported."""
    parser = configparser.ConfigParser()
    parser.read(root / ".importlinter")
    prefix = "importlinter:contract:"
    sections = (section for section in parser.sections() if section.startswith(prefix))
    return {section.removeprefix(prefix): parser[section]["name"] for section in sections}


def lint(root: Path, planted: Path) -> str:
    """Checks the repository's contracts against packages planted in another folder."""
    return subprocess.run(
        [sys.executable, "-c", LINT, "--config", str(root / ".importlinter"), "--no-cache"],
        cwd=planted,
        check=False,
        capture_output=True,
        text=True,
    ).stdout


@pytest.fixture(scope="module")
def reports(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Reports on packages without a breach, and on the same packages with every breach."""
    planted = tmp_path_factory.mktemp("planted")
    for package in PACKAGES:
        (planted / package).mkdir()
        (planted / package / "__init__.py").touch()
    for name, _ in BREACHES.values():
        (planted / name).touch()
    for name, line in GRANTED.items():
        (planted / name).write_text(line)
    clean = lint(root, planted)
    for name, line in BREACHES.values():
        (planted / name).write_text(line)
    return clean, lint(root, planted)


@pytest.mark.parametrize("contract", BREACHES)
def test_an_import_contract_catches_a_breach(
    root: Path, reports: tuple[str, str], contract: str
) -> None:
    clean, breached = reports
    name = contract_names(root)[contract]
    assert f"{name} KEPT" in clean
    assert f"{name} BROKEN" in breached


def test_every_import_contract_has_a_planted_breach(root: Path) -> None:
    assert set(contract_names(root)) == set(BREACHES)
