"""A volume that does not mount is told by events alone, and they are asked for sparingly."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fake_api import FakeApi
from planning_world import World
from weightlease.reasons import Reason
from weightlease_operator.api_errors import Refused
from weightlease_operator.kinds import POD_EVENTS
from weightlease_operator.mounts import Mounts, problem_of
from weightlease_operator.observation import StartingPod
from weightlease_operator.planning import plan

CLAIM = {"persistentVolumeClaim": {"claimName": "data"}}
FAILED = 'MountVolume.SetUp failed for volume "pvc-1" : no such export'


def event(message: str, reason: str = "FailedMount", at: str = "12:00", pod: str = "p") -> Any:
    return {
        "metadata": {"name": f"{pod}-{at}-{reason}", "namespace": "team"},
        "involvedObject": {"uid": pod},
        "reason": reason,
        "message": message,
        "lastTimestamp": f"2026-11-30T{at}:00Z",
    }


def starting_world(source: dict[str, Any]) -> World:
    """The canary's pod has its node since now, and does not run."""
    world = World(spec={"source": source})
    world.settle()
    (job,) = world.active()
    world.jobs[job.name] = replace(job, starting=StartingPod("p", world.now))
    return world


async def told(world: World, mounts: Mounts) -> None:
    """One pass, as the reconciler makes it."""
    world.apply(plan(await mounts.explain(world.observe())))


async def test_a_claim_that_does_not_mount_is_told_long_before_the_deadline() -> None:
    world, api = starting_world(CLAIM), FakeApi()
    mounts = Mounts(api)
    await told(world, mounts)
    assert api.calls == [], "a pod may take a moment to start"
    assert plan(world.observe()).wake_at == world.now + timedelta(seconds=30)
    world.pass_time(30)
    api.put(POD_EVENTS, event(FAILED))
    await told(world, mounts)
    assert world.condition("Degraded") == ("True", Reason.SOURCE_NOT_MOUNTABLE)
    assert world.status.failures[0].message == FAILED
    assert [each.reason for each in world.events if each.warning] == [
        Reason.SOURCE_NOT_MOUNTABLE,
        Reason.SOURCE_NOT_MOUNTABLE,
    ], "of the artifact, and of the node"


async def test_events_are_asked_for_once_a_grace_and_a_pod_that_runs_is_no_problem() -> None:
    world, api = starting_world(CLAIM), FakeApi()
    mounts = Mounts(api)
    api.put(POD_EVENTS, event(FAILED))
    world.pass_time(31)
    for _ in range(5):
        await told(world, mounts)
    assert len(api.calls) == 1
    world.pass_time(31)
    await told(world, mounts)
    assert len(api.calls) == 2
    (job,) = world.active()
    world.jobs[job.name] = replace(job, starting=None)
    await told(world, mounts)
    assert world.condition("Degraded")[0] == "False"
    assert world.status.failures == []


async def test_without_the_right_to_read_events_the_deadline_tells() -> None:
    class Forbidden(FakeApi):
        async def find(self, *_: object) -> list[dict[str, Any]]:
            raise Refused("events is forbidden", 403)

    world = starting_world(CLAIM)
    world.pass_time(31)
    await told(world, Mounts(Forbidden()))
    assert world.condition("Degraded")[0] == "False"


@pytest.mark.parametrize(
    ("events", "hub", "reason"),
    [
        ([event(FAILED)], False, Reason.SOURCE_NOT_MOUNTABLE),
        ([event("Multi-Attach error", "FailedAttachVolume")], False, Reason.SOURCE_NOT_MOUNTABLE),
        ([event('MountVolume.SetUp failed for volume "agent"')], False, Reason.POD_NOT_STARTABLE),
        ([event(FAILED)], True, Reason.POD_NOT_STARTABLE),
        ([event("Pulling image", "Pulling")], False, None),
        ([], False, None),
    ],
)
def test_whose_volume_it_is_decides_the_reason(
    events: list[Any], hub: bool, reason: Reason | None
) -> None:
    found = problem_of(events, hub=hub)
    assert (found.reason if found else None) is reason


def test_the_newest_event_tells() -> None:
    old, new = event("old", at="11:00"), event("new", at="12:30")
    found = problem_of([new, old], hub=False)
    assert found is not None
    assert found.message == "new"
