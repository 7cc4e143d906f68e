"""The test run itself fails on skips and on folders without tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ONE_PROCESS: tuple[str, ...] = ()
TWO_WORKERS = ("-p", "xdist", "--numprocesses", "2")
either_way = pytest.mark.parametrize("how", [ONE_PROCESS, TWO_WORKERS], ids=["one", "two"])
USAGE = pytest.ExitCode.USAGE_ERROR
PASSES = "def test_it_passes():\n    assert True\n"
SKIPS = "import pytest\n\n@pytest.mark.skip\ndef test_it_is_skipped():\n    assert True\n"
SKIPS_WHOLE = "import pytest\n\npytest.importorskip('no_such_module')\n"


def run_pytest(root: Path, folder: Path, tests: dict[str, str], how: tuple[str, ...]) -> int:
    (folder / "conftest.py").write_text((root / "tests" / "conftest.py").read_text())
    for name, text in tests.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", "."]
    arguments = sorted({name.partition("/")[0] for name in tests})
    return subprocess.run(
        [*command, *how, "-c", "/dev/null", *arguments],
        cwd=folder,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        check=False,
        capture_output=True,
    ).returncode


@either_way
def test_folders_with_tests_pass(root: Path, tmp_path: Path, how: tuple[str, ...]) -> None:
    assert run_pytest(root, tmp_path, {"a/test_x.py": PASSES, "b/test_y.py": PASSES}, how) == 0


@either_way
def test_a_folder_without_tests_fails_the_run(
    root: Path, tmp_path: Path, how: tuple[str, ...]
) -> None:
    assert run_pytest(root, tmp_path, {"a/test_x.py": PASSES, "b/helper.py": ""}, how) == USAGE


@either_way
def test_a_skipped_test_fails_the_run(root: Path, tmp_path: Path, how: tuple[str, ...]) -> None:
    assert run_pytest(root, tmp_path, {"a/test_x.py": PASSES + SKIPS}, how) == 1


@either_way
def test_a_module_that_skips_itself_fails_the_run(
    root: Path, tmp_path: Path, how: tuple[str, ...]
) -> None:
    tests = {"a/test_x.py": PASSES, "b/test_y.py": SKIPS_WHOLE + PASSES}
    assert run_pytest(root, tmp_path, tests, how) != 0
