"""What holds for every test: nothing is skipped, and a folder that is asked for has tests.

A skip reads as a pass in a summary, and pytest says nothing about a folder argument that held no
test as long as another one did. Both are failures here.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

# Speed depends on the machine, so no deadline; `nightly` digs deeper: HYPOTHESIS_PROFILE=nightly.
settings.register_profile("ci", deadline=None, max_examples=100)
settings.register_profile("nightly", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

COLLECTED = pytest.StashKey[set[Path]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[COLLECTED] = set()


def pytest_itemcollected(item: pytest.Item) -> None:
    item.config.stash[COLLECTED].add(item.path)


def pytest_collection_finish(session: pytest.Session) -> None:
    collected = session.config.stash[COLLECTED]
    for argument in session.config.args:
        folder = (session.config.invocation_params.dir / argument).resolve()
        if folder.is_dir() and not any(path.is_relative_to(folder) for path in collected):
            message = f"no test was collected under {argument}"
            raise pytest.UsageError(message)
    # Tests that look for leaks collect garbage; what collection itself imported is none.
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped tests count as failures here: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped modules count as failures here: {report.longrepr}"
    return report
