"""From a new WeightArtifact to Ready on every node."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from planning_world import (
    KEY,
    MANIFEST,
    OTHER_KEY,
    OTHER_MANIFEST,
    PRODUCER,
    SIZE,
    World,
)
from weightlease.api.weight_node import HeldState
from weightlease.api.weight_producer import SourceKind
from weightlease.reasons import Reason
from weightlease_operator.observation import ClaimView, Problem, Taint
from weightlease_operator.planning import plan
from weightlease_operator.plans import FinalizerAction


def fixed(world: World) -> World:
    """The canary has fixed the key; nothing else has begun."""
    world.settle()
    (canary,) = world.active()
    world.succeed(canary)
    return world


def test_the_finalizer_comes_before_everything_else() -> None:
    world = World()
    world.metadata = world.metadata.model_copy(update={"finalizers": []})
    first = world.step()
    assert first.finalizer is FinalizerAction.ADD
    assert (first.start, first.entries, first.status) == ((), {}, None)


def test_one_canary_starts_and_its_entry_names_its_job_without_a_key() -> None:
    world = World()
    world.settle()
    (job,) = world.active()
    assert job.node == "node-0"
    assert world.entries() == {"node-0": ""}
    assert world.ready == ("False", Reason.CANARY)
    assert world.status.nodes.summary == "0/3"


def test_the_canary_fixes_key_manifest_and_size() -> None:
    world = fixed(World())
    world.step()
    (shard,) = world.status.shards
    assert (shard.key, shard.manifest_sha256, shard.bytes) == (KEY, MANIFEST, SIZE)
    assert shard.canary_node == "node-0"
    assert world.status.size == "86.7Mi"


def test_a_job_that_says_published_fixes_nothing_until_its_agent_agrees() -> None:
    world = fixed(World())
    world.drop("node-0")
    world.settle()
    assert world.status.shards == []
    assert world.active() == []


def test_an_agent_alone_fixes_nothing() -> None:
    world = World()
    world.hold("node-0", OTHER_KEY)
    world.settle()
    assert world.status.shards == []


def test_the_rest_follow_with_the_canarys_digests() -> None:
    world = fixed(World())
    rollout = world.step()
    assert [(start.node, start.key, start.manifest_sha256) for start in rollout.start] == [
        ("node-1", KEY, MANIFEST),
        ("node-2", KEY, MANIFEST),
    ]
    assert world.entries() == dict.fromkeys(("node-0", "node-1", "node-2"), KEY)
    assert world.ready == ("False", Reason.ROLLING_OUT)


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_no_more_nodes_work_at_once_than_the_limit(limit: int) -> None:
    world = fixed(World(nodes=9, spec={"rollout": {"maxConcurrentNodes": limit}}))
    seen = 0
    while world.ready[0] != "True":
        world.settle()
        assert len(world.working()) <= limit
        seen = max(seen, len(world.working()))
        if world.active():
            world.succeed(world.active()[0])
    assert seen == limit


def test_a_claim_that_mounts_on_one_node_serialises_the_rollout() -> None:
    world = World(spec={"source": {"persistentVolumeClaim": {"claimName": "data"}}})
    world.claim = ClaimView(exists=True, one_node_only=True)
    fixed(world).settle()
    assert world.working() == ["node-1"]


def test_ready_when_all_nodes_hold_it_and_no_job_is_left() -> None:
    world = World()
    world.finish()
    assert world.ready == ("True", Reason.ALL_NODES_READY)
    assert world.condition("Progressing")[0] == "False"
    assert world.condition("Degraded")[0] == "False"
    assert world.status.nodes.summary == "3/3"
    assert world.jobs == {}
    entries = [entry for agent in world.agents.values() for entry in agent.entries]
    assert [(entry.key, entry.manifest_sha256, entry.job) for entry in entries] == [
        (KEY, MANIFEST, "")
    ] * 3


def test_a_node_that_already_holds_the_key_needs_no_job() -> None:
    world = World()
    world.hold("node-2")
    fixed(world).settle()
    assert world.working() == ["node-1"]
    assert world.entries()["node-2"] == KEY


def test_another_manifest_under_the_same_key_is_a_content_mismatch() -> None:
    world = World(nodes=2)
    world.hold("node-1", KEY, OTHER_MANIFEST)
    fixed(world).settle()
    assert world.active() == []
    assert world.condition("Degraded") == ("True", Reason.CONTENT_MISMATCH)
    assert world.ready == ("False", Reason.CONTENT_MISMATCH)


def test_a_published_artifact_that_vanishes_is_made_again() -> None:
    world = World()
    world.finish()
    world.drop("node-1")
    world.settle()
    assert world.ready == ("False", Reason.ROLLING_OUT)
    assert world.working() == ["node-1"]


def test_a_deleted_job_is_made_again() -> None:
    world = World()
    world.settle()
    (job,) = world.active()
    del world.jobs[job.name]
    world.settle()
    assert world.active() == [job]


def test_a_new_node_warms_by_itself() -> None:
    world = World()
    world.finish()
    world.add_node("node-9")
    world.settle()
    assert world.working() == ["node-9"]
    assert world.status.nodes.summary == "3/4"
    world.finish()
    assert world.ready == ("True", Reason.ALL_NODES_READY)


def test_a_gone_node_is_forgotten_with_its_job() -> None:
    world = fixed(World())
    world.settle()
    world.remove_node("node-1")
    world.settle()
    assert world.working() == ["node-2"]
    world.finish()
    assert world.status.nodes.summary == "2/2"


def test_a_canary_whose_node_vanishes_is_replaced() -> None:
    world = World()
    world.settle()
    world.remove_node("node-0")
    world.settle()
    assert world.working() == ["node-1"]


CORDON = {"unschedulable": True}
NOT_READY = {"ready": False}
TAINT = {"taints": (Taint("gpu", "NoSchedule"),)}


@pytest.mark.parametrize("change", [CORDON, NOT_READY, TAINT], ids=["cordon", "notready", "taint"])
def test_a_node_that_is_away_keeps_its_entry_and_its_bytes(change: dict[str, object]) -> None:
    world = World()
    world.finish()
    world.change_node("node-1", **change)
    world.settle()
    assert world.entries()["node-1"] == KEY


@pytest.mark.parametrize("change", [CORDON, NOT_READY, TAINT], ids=["cordon", "notready", "taint"])
def test_a_node_that_is_away_gets_no_job_and_holds_nobody_up(change: dict[str, object]) -> None:
    world = World()
    world.change_node("node-1", **change)
    world.finish()
    assert world.ready == ("True", Reason.ALL_NODES_READY)
    assert world.status.nodes.summary == "2/2"
    assert "node-1" not in world.entries()


def test_a_node_that_no_longer_matches_loses_entry_and_job() -> None:
    world = World(spec={"placement": {"nodeSelector": {"pool": "a"}}})
    for name in tuple(world.nodes):
        world.change_node(name, labels={"pool": "a"})
    fixed(world).settle()
    world.change_node("node-1", labels={"pool": "b"})
    world.settle()
    assert sorted(world.entries()) == ["node-0", "node-2"]
    assert world.working() == ["node-2"]


def test_a_silent_agent_is_counted_and_waited_for() -> None:
    world = World()
    world.finish()
    world.pass_time(121, silent=("node-1",))
    world.settle()
    assert world.ready == ("False", Reason.AGENT_NOT_REPORTING)
    assert world.status.nodes.summary == "2/3"
    assert world.active() == []
    assert world.entries()["node-1"] == KEY
    world.report()
    world.settle()
    assert world.ready == ("True", Reason.ALL_NODES_READY)


def test_no_node_matches() -> None:
    world = World(spec={"placement": {"nodeSelector": {"pool": "none"}}})
    world.settle()
    assert world.ready == ("False", Reason.NO_MATCHING_NODE)


def test_every_component_is_a_shard_of_its_own() -> None:
    world = World(nodes=2, spec={"components": [{"name": "a"}, {"name": "b", "path": "b"}]})
    world.settle()
    first, second = world.active()
    assert (first.component, second.component) == ("a", "b")
    assert first.node == second.node == "node-0"
    world.succeed(first)
    world.succeed(second, OTHER_KEY, OTHER_MANIFEST)
    world.settle()
    assert [shard.key for shard in world.status.shards] == [KEY, OTHER_KEY]
    assert world.status.nodes.summary == "1/2"
    for job, digests in zip(
        world.active(), [(KEY, MANIFEST), (OTHER_KEY, OTHER_MANIFEST)], strict=True
    ):
        world.succeed(job, *digests)
    world.settle()
    assert world.ready == ("True", Reason.ALL_NODES_READY)


def test_suspended_starts_nothing_and_lets_running_jobs_end() -> None:
    world = fixed(World(nodes=4, spec={"rollout": {"maxConcurrentNodes": 1}}))
    world.settle()
    world.edit(rollout={"maxConcurrentNodes": 1, "suspend": True})
    world.settle()
    assert world.working() == ["node-1"]
    world.succeed(world.active()[0])
    world.settle()
    assert world.active() == []
    assert world.ready == ("False", Reason.SUSPENDED)
    assert world.condition("Progressing")[0] == "False"
    world.edit(rollout={"maxConcurrentNodes": 1})
    world.settle()
    assert world.working() == ["node-2"]


def test_an_edit_of_the_rollout_keeps_keys_and_jobs() -> None:
    world = fixed(World())
    world.settle()
    jobs, shards = dict(world.jobs), world.status.shards
    world.edit(rollout={"maxConcurrentNodes": 9})
    world.settle()
    assert world.jobs == jobs
    assert world.status.shards == shards
    assert world.status.observed_generation == 2


def test_an_edit_of_the_content_starts_over_and_waiting_nodes_keep_the_old_key() -> None:
    world = World()
    world.finish()
    world.edit(source={"huggingFace": {"repo": "org/model", "revision": "1" * 40}})
    world.settle()
    assert world.ready == ("False", Reason.CANARY)
    assert all(each.observed_generation == 2 for each in world.status.conditions)
    assert world.entries() == {"node-0": "", "node-1": KEY, "node-2": KEY}
    world.succeed(world.active()[0], OTHER_KEY, OTHER_MANIFEST)
    world.settle()
    assert world.working() == ["node-1", "node-2"]
    assert set(world.entries().values()) == {OTHER_KEY}


def test_jobs_of_an_older_content_are_deleted() -> None:
    world = World()
    world.settle()
    (old,) = world.active()
    world.edit(source={"huggingFace": {"repo": "org/model", "revision": "1" * 40}})
    world.settle()
    (new,) = world.active()
    assert new.name != old.name


def test_a_component_that_left_the_spec_loses_its_entries() -> None:
    world = World(nodes=1, spec={"components": [{"name": "a"}, {"name": "b", "path": "b"}]})
    world.finish()
    world.edit(components=[{"name": "a"}])
    world.settle()
    (agent,) = world.agents.values()
    assert [entry.component for entry in agent.entries] == ["a"]


def test_progress_counts_the_bytes_of_working_nodes() -> None:
    world = World(nodes=1)
    world.settle()
    world.hold("node-0", state=HeldState.PUBLISHING, done=SIZE // 4)
    world.settle()
    assert world.status.progress is not None
    assert (world.status.progress.percent, world.status.progress.eta_seconds) == (25, None)
    world.pass_time(10)
    world.hold("node-0", state=HeldState.PUBLISHING, done=SIZE // 2)
    world.settle()
    progress = world.status.progress
    assert progress.percent == 50
    assert progress.bytes_per_second == SIZE // 40
    assert progress.eta_seconds == 20
    world.finish()
    assert world.status.progress is None


def test_transition_times_move_only_with_the_status() -> None:
    world = World()
    world.settle()
    before = world.status.conditions[0].last_transition_time
    world.pass_time(60)
    world.succeed(world.active()[0])
    world.settle()
    assert world.status.conditions[0].reason == Reason.ROLLING_OUT
    assert world.status.conditions[0].last_transition_time == before
    world.pass_time(60)
    world.finish()
    assert world.status.conditions[0].last_transition_time > before


def test_events_tell_each_change_once() -> None:
    world = World()
    world.finish()
    assert [event.reason for event in world.events] == [
        Reason.CANARY,
        Reason.ROLLING_OUT,
        Reason.ALL_NODES_READY,
    ]
    assert not any(event.warning for event in world.events)


def test_it_wakes_for_what_time_alone_changes() -> None:
    world = World()
    world.settle()
    assert plan(world.observe()).wake_at == world.now + timedelta(seconds=121)
    world.fail(world.active()[0], Reason.SOURCE_UNAVAILABLE)
    world.settle()
    assert plan(world.observe()).wake_at == world.now + timedelta(seconds=10)


BLOCKED: dict[Reason, dict[str, object]] = {
    Reason.PRODUCER_NOT_FOUND: {"producerRef": {"name": "absent"}},
    Reason.PRODUCER_UNSUPPORTED: {},
    Reason.HOST_PATH_NOT_ALLOWED: {"source": {"hostPath": {"path": "/models"}}},
    Reason.SOURCE_NOT_MOUNTABLE: {"source": {"persistentVolumeClaim": {"claimName": "data"}}},
    Reason.PREWARM_FAILED: {},
}


@pytest.mark.parametrize("reason", BLOCKED)
def test_a_wrong_reference_is_named_and_starts_nothing(reason: Reason) -> None:
    world = World(spec=BLOCKED[reason])
    if reason is Reason.PRODUCER_NOT_FOUND:
        world.producer = None
    if reason is Reason.PRODUCER_UNSUPPORTED:
        world.producer = PRODUCER.model_copy(update={"sources": [SourceKind.HOST_PATH]})
    if reason is Reason.SOURCE_NOT_MOUNTABLE:
        world.claim = ClaimView(exists=False)
    if reason is Reason.PREWARM_FAILED:
        world.refused = "exceeded quota"
    world.settle()
    assert world.jobs == {}
    assert world.ready == ("False", reason)
    assert world.condition("Degraded") == ("True", reason)
    assert world.condition("Progressing")[0] == "False"


def test_a_host_path_is_a_source_where_the_administrator_allows_it() -> None:
    world = World(spec={"source": {"hostPath": {"path": "/models"}}})
    world.settings = world.settings.model_copy(update={"allow_host_path_sources": True})
    world.finish()
    assert world.ready[0] == "True"


def test_ready_stays_when_the_producer_goes() -> None:
    world = World()
    world.finish()
    world.producer = None
    world.settle()
    assert world.ready == ("True", Reason.ALL_NODES_READY)
    assert world.condition("Degraded") == ("True", Reason.PRODUCER_NOT_FOUND)
    assert set(world.entries().values()) == {KEY}


def test_a_pod_that_cannot_start_is_named() -> None:
    world = World(nodes=1)
    world.settle()
    (job,) = world.active()
    blocked = Problem(Reason.IMAGE_NOT_PULLABLE, "back-off pulling image")
    world.jobs[job.name] = replace(job, blocked=blocked)
    world.settle()
    assert world.ready == ("False", Reason.IMAGE_NOT_PULLABLE)
    assert world.condition("Progressing")[0] == "True"


def test_who_may_use_it_reaches_every_entry_and_follows_an_edit() -> None:
    publishers = [{"serviceAccountName": "trainer"}, {"serviceAccountName": "ci", "namespace": "b"}]
    world = World(spec={"access": {"namespaces": ["b", "a"], "publishers": publishers}})
    world.finish()
    entries = [entry for agent in world.agents.values() for entry in agent.entries]
    assert [(entry.access_namespaces, entry.publishers) for entry in entries] == [
        (["a", "b"], ["b/ci", "team/trainer"])
    ] * 3
    jobs = len(world.jobs)
    world.edit(access={"namespaces": ["a"]})
    world.settle()
    entries = [entry for agent in world.agents.values() for entry in agent.entries]
    assert [(entry.access_namespaces, entry.publishers) for entry in entries] == [(["a"], [])] * 3
    assert len(world.jobs) == jobs


def test_a_grant_that_ends_also_ends_for_the_content_that_still_serves() -> None:
    world = World(spec={"access": {"namespaces": ["a"]}})
    world.finish()
    world.edit(source={"huggingFace": {"repo": "org/model", "revision": "1" * 40}}, access={})
    world.settle()
    old = world.agents["node-2"].entries[0]
    assert (old.key, old.access_namespaces) == (KEY, [])
