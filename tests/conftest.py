"""What holds for every test: nothing is skipped, and a folder that is asked for has tests.

A skip reads as a pass in a summary, and pytest says nothing about a folder argument that held no
test as long as another one did. Both are failures here.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Collection, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

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
    # A worker of pytest-xdist has no way to refuse a run; its controller does that.
    if not hasattr(session.config, "workerinput"):
        collected = session.config.stash[COLLECTED]
        require_tests(session.config, collected)
    # Tests that look for leaks collect garbage; what collection itself imported is none.
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: WorkerController, ids: Sequence[str]) -> None:
    config = node.config
    require_tests(config, {config.rootpath / test.partition("::")[0] for test in ids})


def require_tests(config: pytest.Config, collected: Collection[Path]) -> None:
    """Refuse a run one of whose folders holds no test.

    Raises:
        pytest.UsageError: names the first such folder.

    """
    for argument in config.args:
        folder = (config.invocation_params.dir / argument).resolve()
        if folder.is_dir() and not any(path.is_relative_to(folder) for path in collected):
            message = f"no test was collected under {argument}"
            raise pytest.UsageError(message)


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
