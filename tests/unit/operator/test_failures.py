"""What goes wrong on nodes: attempts, backoff, replaced and disputed canaries."""

from __future__ import annotations

import pytest

from planning_world import KEY, MANIFEST, OTHER_KEY, OTHER_MANIFEST, World
from weightlease.reasons import EXIT_STATUS, Reason
from weightlease_operator.retry import backoff
from weightlease_operator.settings import PlanSettings

RETRYABLE = sorted(reason for reason, status in EXIT_STATUS.items() if status.retryable)
FINAL = sorted(
    reason for reason, status in EXIT_STATUS.items() if status.code and not status.retryable
)


def fixed(world: World) -> World:
    """The canary is done and the rest have begun."""
    world.settle()
    world.succeed(world.active()[0])
    world.settle()
    return world


def fail_one(world: World, reason: Reason, key: str = "", manifest: str = "") -> str:
    """The first Job at work fails; returns its node."""
    job = min(world.active(), key=lambda each: each.node)
    world.fail(job, reason, key, manifest)
    world.settle()
    return job.node


@pytest.mark.parametrize("reason", RETRYABLE)
def test_a_retryable_failure_is_tried_again_on_the_same_node_when_due(reason: Reason) -> None:
    world = World()
    world.settle()
    fail_one(world, reason)
    (failure,) = world.status.failures
    assert (failure.node, failure.reason, failure.attempts) == ("node-0", reason, 1)
    assert failure.retry_at == "2026-11-30T12:00:10Z"
    assert world.active() == []
    assert world.condition("Degraded")[0] == "False"
    world.pass_time(9)
    world.settle()
    assert world.active() == []
    world.pass_time(1)
    world.settle()
    (job,) = world.active()
    assert (job.node, job.attempt) == ("node-0", 1)
    assert len(world.jobs) == 1, "the Job of the attempt before is gone"


@pytest.mark.parametrize("reason", FINAL)
def test_a_canary_that_no_retry_can_help_stops_the_rollout(reason: Reason) -> None:
    world = World()
    world.settle()
    fail_one(world, reason)
    world.pass_time(3600)
    world.settle()
    assert world.active() == []
    assert world.ready == ("False", reason)
    assert world.condition("Degraded") == ("True", reason)
    assert world.condition("Progressing")[0] == "False"
    assert world.status.failures[0].retry_at is None


def test_waits_double_up_to_the_cap() -> None:
    settings = PlanSettings(backoff_base_seconds=10, backoff_cap_seconds=600)
    waits = [backoff(attempt, settings).total_seconds() for attempt in range(8)]
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600]
    assert backoff(10**6, settings).total_seconds() == 600


def test_a_canary_without_attempts_left_is_replaced() -> None:
    world = World(spec={"rollout": {"backoffLimit": 1}})
    world.settle()
    fail_one(world, Reason.SOURCE_UNAVAILABLE)
    world.pass_time(10)
    world.settle()
    fail_one(world, Reason.SOURCE_UNAVAILABLE)
    assert world.working() == ["node-1"]
    world.succeed(world.active()[0])
    world.settle()
    assert world.status.shards[0].canary_node == "node-1"
    assert world.working() == ["node-2"]
    assert world.condition("Degraded") == ("True", Reason.SOURCE_UNAVAILABLE)


def test_when_every_canary_is_used_up_it_waits_for_a_person() -> None:
    world = World(nodes=2, spec={"rollout": {"backoffLimit": 0}})
    world.settle()
    fail_one(world, Reason.SOURCE_UNAVAILABLE)
    fail_one(world, Reason.SOURCE_RATE_LIMITED)
    world.pass_time(3600)
    world.settle()
    assert world.active() == []
    assert world.ready == ("False", Reason.PREWARM_FAILED)
    assert world.status.nodes.failed == 2
    assert world.condition("Progressing")[0] == "False"


def test_one_nodes_failure_does_not_hold_up_the_others() -> None:
    world = fixed(World(nodes=4, spec={"rollout": {"maxConcurrentNodes": 1, "backoffLimit": 0}}))
    fail_one(world, Reason.INSUFFICIENT_CAPACITY)
    assert world.working() == ["node-2"]
    world.finish()
    assert world.status.nodes.summary == "3/4"
    assert world.ready == ("False", Reason.INSUFFICIENT_CAPACITY)


@pytest.mark.parametrize("way", ["annotation", "edit"])
def test_a_person_re_arms_it(way: str) -> None:
    world = World(nodes=1)
    world.settle()
    fail_one(world, Reason.SOURCE_NOT_FOUND)
    old = set(world.jobs)
    if way == "annotation":
        world.retry("2026-11-30")
    else:
        world.edit(source={"huggingFace": {"repo": "org/model", "revision": "1" * 40}})
    world.settle()
    (job,) = world.active()
    assert job.attempt == 0
    assert not old & set(world.jobs)
    world.settle()
    assert len(world.active()) == 1


def test_re_arming_leaves_running_jobs_alone() -> None:
    world = fixed(World())
    running = set(world.jobs)
    world.retry("now")
    world.settle()
    assert set(world.jobs) == running


def test_a_node_that_makes_another_key_fails_alone() -> None:
    world = fixed(World())
    first, _ = world.active()
    world.succeed(first, OTHER_KEY, OTHER_MANIFEST)
    world.settle()
    failure = world.status.failures[0]
    assert (failure.node, failure.reason) == ("node-1", Reason.IDENTITY_MISMATCH)
    world.finish()
    assert world.status.nodes.summary == "2/3"
    assert world.status.shards[0].key == KEY


def test_a_job_that_ended_well_and_left_nothing_is_a_failed_attempt() -> None:
    world = World(nodes=1)
    world.settle()
    (job,) = world.active()
    world.succeed(job)
    world.drop("node-0")
    world.pass_time(89)
    world.settle()
    assert world.status.failures == []
    world.pass_time(1)
    world.settle()
    (job,) = world.active()
    assert job.attempt == 1


def test_two_nodes_that_agree_against_the_canary_start_over() -> None:
    world = fixed(World(nodes=4))
    for _ in range(2):
        fail_one(world, Reason.CONTENT_MISMATCH, KEY, OTHER_MANIFEST)
    assert [e.reason for e in world.events if e.warning].count(Reason.CANARY_DISPUTED) == 1
    assert world.status.shards == []
    canary = next(job for job in world.active() if job.node == "node-1")
    assert canary.attempt == 1
    world.succeed(canary, KEY, OTHER_MANIFEST)
    world.settle()
    assert world.status.shards[0].canary_node == "node-1"
    assert world.status.shards[0].manifest_sha256 == OTHER_MANIFEST


def test_two_nodes_that_each_made_something_else_dispute_nothing() -> None:
    world = fixed(World(nodes=4))
    fail_one(world, Reason.CONTENT_MISMATCH, KEY, OTHER_MANIFEST)
    fail_one(world, Reason.CONTENT_MISMATCH, KEY, "e" * 64)
    assert world.status.shards[0].manifest_sha256 == MANIFEST


def test_a_canary_that_others_reproduced_is_not_outvoted() -> None:
    world = fixed(World(nodes=5))
    for job in world.active()[2:]:
        world.succeed(job)
    world.settle()
    for _ in range(2):
        fail_one(world, Reason.CONTENT_MISMATCH, KEY, OTHER_MANIFEST)
    assert world.status.shards[0].manifest_sha256 == MANIFEST


def test_only_the_first_ten_failures_are_listed_and_each_is_told_once() -> None:
    world = fixed(World(nodes=14, spec={"rollout": {"maxConcurrentNodes": 20, "backoffLimit": 0}}))
    for job in world.active():
        world.fail(job, Reason.INSUFFICIENT_CAPACITY)
    world.settle()
    assert len(world.status.failures) == 10
    assert world.status.nodes.failed == 13
    told = [event for event in world.events if event.reason is Reason.INSUFFICIENT_CAPACITY]
    assert len([event for event in told if " on node-" in event.message]) == 10


def test_a_node_without_room_is_told_until_it_has_room() -> None:
    world = fixed(World())
    assert world.condition("CapacityAvailable") == ("True", Reason.CAPACITY_AVAILABLE)
    node = fail_one(world, Reason.INSUFFICIENT_CAPACITY)
    said = ("False", Reason.INSUFFICIENT_CAPACITY)
    assert world.condition("CapacityAvailable") == said
    message = next(c.message for c in world.status.conditions if c.type == "CapacityAvailable")
    assert message == f"1 without room; {node}: failed by InsufficientCapacity"
    world.pass_time(10)
    world.settle()
    assert node in world.working()
    assert world.condition("CapacityAvailable") == said, "an attempt is not yet room"
    world.finish()
    assert world.condition("CapacityAvailable") == ("True", Reason.CAPACITY_AVAILABLE)


def test_another_failure_says_nothing_about_capacity() -> None:
    world = World()
    world.settle()
    fail_one(world, Reason.SOURCE_UNAVAILABLE)
    assert world.condition("CapacityAvailable") == ("True", Reason.CAPACITY_AVAILABLE)


def test_a_job_of_a_node_that_was_deleted_counts_for_nothing_on_its_successor() -> None:
    world = fixed(World(nodes=2))
    world.succeed(world.active()[0])
    world.remove_node("node-1")
    world.add_node("node-1")
    world.change_node("node-1", uid="another")
    old = set(world.jobs)
    world.settle()
    (job,) = world.active()
    assert (job.node, job.attempt) == ("node-1", 0)
    assert not old & set(world.jobs)
