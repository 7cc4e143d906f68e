"""What is visible is on disk: the order of fsyncs, and a disk that forgets what was not synced."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from crash_model import ForgetfulDisk
from faults import KEY, LARGE, SMALL, publish, reader_sees
from sample_producer import SampleProducer
from system_calls import SLOW_SYNCS, Call, mutations, record
from weightlease.filesystem import remove_tree
from weightlease.reports import StoreStatus
from weightlease.store.layout import PUBLISHED_MODE, SEALED_MODE

NewRoot = Callable[[], Path]


class Timeline:
    """Positions of calls in a trace."""

    def __init__(self, calls: list[Call]) -> None:
        self.calls = calls

    def first(self, name: str, end: str) -> int:
        """Position of the first `name` whose target ends with `end`."""
        return self._positions(name, end)[0]

    def last(self, name: str, end: str) -> int:
        return self._positions(name, end)[-1]

    def _positions(self, name: str, end: str) -> list[int]:
        found = [
            index
            for index, call in enumerate(self.calls)
            if call.name == name and self._target(call).endswith(end)
        ]
        assert found, f"no {name} of …{end}"
        return found

    @staticmethod
    def _target(call: Call) -> str:
        if call.name == "openat":
            return call.opened
        return call.paths[-1] if call.name in {"rename", "chmod", "mkdir"} else call.descriptor


@pytest.fixture(params=[SMALL, LARGE], ids=["small", "large"])
def producer(request: pytest.FixtureRequest) -> SampleProducer:
    chosen: SampleProducer = request.param
    return chosen


@pytest.fixture
def traced(
    new_root: NewRoot, tmp_path: Path, producer: SampleProducer
) -> tuple[ForgetfulDisk, list[Call], Path]:
    """A disk before a publication, the publication's calls, and the root after it."""
    root = new_root()
    disk = ForgetfulDisk(root)
    recorded = record(lambda: print(publish(root, producer)), tmp_path, *SLOW_SYNCS)
    calls = mutations(recorded, root)
    return disk, calls, root


def test_every_file_is_synced_before_ready_and_ready_before_the_rename(
    traced: tuple[ForgetfulDisk, list[Call], Path], producer: SampleProducer
) -> None:
    _, calls, _ = traced
    time = Timeline(calls)
    ready, visible = time.first("openat", "/READY.json"), time.first("rename", f"artifacts/{KEY}")
    for name in [*producer.payloads, "manifest.json"]:
        assert time.last("write", name) < time.first("fsync", name) < ready
    synced_assets = [
        index
        for index, call in enumerate(calls)
        if call.name == "fsync" and call.descriptor.endswith(".part")
    ]
    assert len(synced_assets) == len(producer.assets)
    assert synced_assets[-1] < ready
    assert ready < time.first("fsync", "/READY.json") < visible
    staging = os.path.basename(calls[visible].paths[0])
    assert time.first("fsync", "/READY.json") < time.first("fsync", f"tmp/{staging}") < visible


def test_what_becomes_visible_carries_the_mark_of_the_unfinished_until_it_is_complete(
    traced: tuple[ForgetfulDisk, list[Call], Path],
) -> None:
    _, calls, _ = traced
    time = Timeline(calls)
    visible = time.first("rename", f"artifacts/{KEY}")
    staging = f"tmp/{os.path.basename(calls[visible].paths[0])}"
    sealed = time.first("chmod", staging)
    assert time.first("fsync", "/READY.json") < sealed < time.last("fsync", staging) < visible
    assert calls[sealed].mode == SEALED_MODE
    assert calls[time.first("chmod", f"artifacts/{KEY}")].mode == PUBLISHED_MODE


def test_assets_are_durable_before_the_artifact_that_names_them_is_visible(
    traced: tuple[ForgetfulDisk, list[Call], Path],
) -> None:
    time = Timeline(traced[1])
    moved, visible = time.first("rename", f"assets/{KEY}"), time.first("rename", f"artifacts/{KEY}")
    assert time.first("fsync", ".assets") < moved
    assert moved < time.first("fsync", f"/assets/{KEY}") < time.first("fsync", "/assets") < visible


def test_the_commit_is_the_last_sync_and_comes_after_all_parents(
    traced: tuple[ForgetfulDisk, list[Call], Path],
) -> None:
    time = Timeline(traced[1])
    visible = time.first("rename", f"artifacts/{KEY}")
    hardened = time.first("chmod", f"artifacts/{KEY}")
    synced = time.first("fsync", f"artifacts/{KEY}")
    assert (
        visible < hardened < synced < time.last("fsync", "/tmp") < time.last("fsync", "/artifacts")
    )
    assert time.last("fsync", "") == time.last("fsync", "/artifacts")


@pytest.mark.parametrize("eager", [False, True], ids=["strict", "eager"])
def test_a_power_cut_at_any_moment_leaves_a_whole_artifact_or_none(
    traced: tuple[ForgetfulDisk, list[Call], Path], tmp_path: Path, eager: bool
) -> None:
    disk, calls, root = traced
    seen = []
    for count in range(len(calls) + 1):
        moment = disk.after(calls, count, root)
        seen.append(look_after_power_cut(moment, tmp_path / "cut", eager=eager))
    assert seen[0] is StoreStatus.MISS
    assert seen[-1] is StoreStatus.HIT, "what was reported as published must be there"
    assert set(seen) <= {StoreStatus.MISS, StoreStatus.INVALID, StoreStatus.HIT}


def test_the_model_would_notice_a_missing_sync(
    traced: tuple[ForgetfulDisk, list[Call], Path], tmp_path: Path, producer: SampleProducer
) -> None:
    disk, calls, root = traced
    payload = min(producer.payloads)
    forgotten = [
        call for call in calls if call.name != "fsync" or not call.descriptor.endswith(payload)
    ]
    finished = disk.after(forgotten, len(forgotten), root)
    assert look_after_power_cut(finished, tmp_path / "cut", eager=True) is StoreStatus.INVALID


def look_after_power_cut(disk: ForgetfulDisk, place: Path, *, eager: bool) -> StoreStatus:
    disk.after_power_cut(place, eager=eager)
    try:
        return reader_sees(place)
    finally:
        remove_tree(str(place))
