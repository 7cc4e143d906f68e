"""The list of planted faults fits the code: each has its place, and each table row has one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

# rows of the tables of modes, failures and parallel dimensions
ROWS = [
    *(f"M{number}" for number in range(1, 4)),
    *(f"F{number}" for number in range(1, 11)),
    *(f"P{number}" for number in range(1, 6)),
]


@pytest.fixture(scope="module")
def script(root: Path) -> ModuleType:
    path = root / "hack" / "docs" / "planted_faults.py"
    spec = importlib.util.spec_from_file_location("planted_faults", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up by name
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_row_of_a_table_has_a_fault(script: ModuleType) -> None:
    numbers = [fault.number for fault in script.FAULTS]
    assert set(ROWS) <= set(numbers)
    assert len(set(numbers)) == len(numbers)


def test_every_fault_still_has_its_one_place(root: Path, script: ModuleType) -> None:
    package = root / "runtime" / "src" / "weightlease"
    for fault in script.FAULTS:
        source = (package / fault.file).read_text(encoding="utf-8")
        assert script.planted(fault, source) != source


def test_every_fault_names_a_test_that_exists(root: Path, script: ModuleType) -> None:
    conformance = (root / "tests" / "support" / "runtime_conformance.py").read_text()
    for fault in script.FAULTS:
        text = (root / fault.test_file).read_text(encoding="utf-8") + conformance
        assert fault.test in text, fault.number


def test_a_fault_whose_place_is_gone_or_doubled_is_an_error(script: ModuleType) -> None:
    fault = script.FAULTS[0]
    with pytest.raises(ValueError, match="occurs 0 times"):
        script.planted(fault, "")
    with pytest.raises(ValueError, match="occurs 2 times"):
        script.planted(fault, fault.before * 2)
