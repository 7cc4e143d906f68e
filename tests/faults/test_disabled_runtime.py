"""A disabled runtime makes no system call that could touch a file, a socket or another process."""

from __future__ import annotations

from pathlib import Path

from phased_producer import PhasedSample
from sample_producer import fine_tune
from system_calls import Call, run
from weightlease.identity import WeightArtifactIdentity
from weightlease.runtime import HostWeightRuntime, RuntimeMode, RuntimePolicy
from weightlease.store.local import LocalStore

# by strace's classes: what takes a path, what makes or uses a socket, what starts a process
TOUCHING = ("-e", "trace=%file,%network,%process")
# how the child ends
ENDING = {"exit", "exit_group"}


def identity() -> WeightArtifactIdentity:
    raise AssertionError("no identity is needed")


def producer() -> PhasedSample:
    raise AssertionError("no producer is needed")


def calls_of(mode: RuntimeMode, tmp_path: Path) -> list[Call]:
    def start() -> None:
        runtime = HostWeightRuntime(
            lambda: LocalStore(tmp_path / "domain"),
            RuntimePolicy(mode, allow_post_load_publish=True),
        )
        if mode is RuntimeMode.DISABLED:
            runtime.resolve(identity, producer)
            runtime.publish_after_load(identity, producer)
        else:
            runtime.resolve(lambda: fine_tune(0))

    done = run(start, tmp_path, *TOUCHING)
    assert done.status == 0
    return [call for call in done.calls if call.name not in ENDING]


def test_a_disabled_runtime_makes_no_call_that_touches_anything(tmp_path: Path) -> None:
    assert calls_of(RuntimeMode.DISABLED, tmp_path) == []


def test_the_trace_would_show_a_store_that_is_opened(tmp_path: Path) -> None:
    touched = calls_of(RuntimeMode.PREFERRED, tmp_path)
    assert any("domain" in path for call in touched for path in call.paths)
