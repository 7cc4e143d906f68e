"""What must not be imported is not, and the contracts that say so catch a breach."""

from __future__ import annotations

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


BREACHES = {
    "library-layers": ("weightlease/errors.py", "import weightlease.store"),
    "distributions": ("weightlease_operator/plan.py", "import weightlease_node_agent.server"),
    "kopf": ("weightlease_operator/plan.py", "import kopf"),
    "kubernetes": ("weightlease_node_agent/server.py", "import kubernetes.aio"),
    "accelerators": ("weightlease/store.py", "def later():\n    import torch"),
    "pydantic": ("weightlease/store.py", "import pydantic"),
    "hub": ("weightlease/store.py", "import huggingface_hub"),
}
GRANTED = {
    "weightlease_operator/wiring.py": "import kopf",
    "weightlease_operator/gateway.py": "import kubernetes.aio",
    "weightlease/lease_tensors.py": "import torch",
    "weightlease/api.py": "import pydantic",
    "weightlease/source.py": "import huggingface_hub",
}
MODULES = (
    "weightlease/__init__.py",
    "weightlease/errors.py",
    "weightlease/store.py",
    "weightlease_operator/__init__.py",
    "weightlease_operator/plan.py",
    "weightlease_node_agent/__init__.py",
    "weightlease_node_agent/server.py",
)


def lint(root: Path, planted: Path, contract: str) -> subprocess.CompletedProcess[str]:
    """Checks one contract of the repository against packages planted in another folder."""
    for name in MODULES:
        (planted / name).parent.mkdir(exist_ok=True)
        (planted / name).touch()
    for name, line in GRANTED.items():
        (planted / name).write_text(line)
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    arguments = ["--config", str(root / ".importlinter"), "--contract", contract, "--no-cache"]
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=planted,
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("contract", BREACHES)
def test_an_import_contract_catches_a_breach(root: Path, tmp_path: Path, contract: str) -> None:
    name, line = BREACHES[contract]
    kept = lint(root, tmp_path, contract)
    assert kept.returncode == 0, kept.stdout
    (tmp_path / name).write_text(line)
    broken = lint(root, tmp_path, contract)
    assert broken.returncode == 1, broken.stdout
    assert "1 broken" in broken.stdout


def test_every_import_contract_has_a_planted_breach(root: Path) -> None:
    lines = (root / ".importlinter").read_text().splitlines()
    prefix = "[importlinter:contract:"
    contracts = {line[len(prefix) : -1] for line in lines if line.startswith(prefix)}
    assert contracts == set(BREACHES)
