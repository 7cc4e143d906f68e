"""Deleting a WeightArtifact cleans the nodes, waits for leases and never hangs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planning_world import KEY, MANIFEST, OTHER_KEY, World
from weightlease.api.weight_node import WantedArtifact
from weightlease.names import ANNOTATION_FORCE_DELETE, StorageClass
from weightlease.reasons import Reason


def ready_world() -> World:
    world = World(nodes=2)
    world.finish()
    world.report()
    return world


def test_entries_go_first_and_the_finalizer_when_agents_have_cleaned() -> None:
    world = ready_world()
    world.delete()
    world.settle()
    assert world.entries() == {}
    assert not world.released
    assert world.ready == ("False", Reason.DELETING)
    world.clean()
    world.settle()
    assert world.released


def test_an_old_report_without_the_bytes_does_not_count() -> None:
    world = ready_world()
    world.delete()
    for node in world.nodes:
        world.drop(node)
    world.settle()
    assert not world.released, "the agents have not read the spec without the entries"
    world.report()
    world.settle()
    assert world.released


def test_running_jobs_are_stopped() -> None:
    world = World(nodes=2)
    world.settle()
    assert world.active()
    world.delete()
    world.settle()
    assert world.jobs == {}
    world.clean()
    world.settle()
    assert world.released


def test_half_published_bytes_are_waited_for() -> None:
    world = World(nodes=1)
    world.settle()
    world.hold("node-0", OTHER_KEY)
    world.delete()
    world.settle()
    world.report()
    world.settle()
    assert not world.released
    world.clean()
    world.settle()
    assert world.released


def test_leases_are_waited_for_and_their_pods_named() -> None:
    world = ready_world()
    world.hold("node-1", leases=("pod team/server-0", "pod team/server-1"))
    world.delete()
    world.settle()
    world.clean()
    world.settle()
    assert not world.released
    assert world.ready == ("False", Reason.LEASED)
    message = world.status.conditions[0].message
    assert "2 leases" in message
    assert "pod team/server-0, pod team/server-1" in message
    world.hold("node-1")
    world.clean()
    world.settle()
    assert world.released


def test_a_terminating_namespace_does_not_wait_for_leases() -> None:
    world = ready_world()
    world.hold("node-1", leases=("pod team/server-0",))
    world.terminating = True
    world.delete()
    world.settle()
    assert world.released
    assert world.entries() == {}


def test_a_gone_node_is_not_waited_for() -> None:
    world = ready_world()
    world.delete()
    world.remove_node("node-1")
    world.settle()
    world.clean()
    world.settle()
    assert world.released


def test_a_weight_node_whose_node_is_gone_is_the_garbage_collectors() -> None:
    world = ready_world()
    world.delete()
    del world.nodes["node-1"]
    world.settle()
    world.clean()
    world.settle()
    assert world.released


def test_a_silent_agent_is_dropped_after_its_grace() -> None:
    world = ready_world()
    world.delete()
    world.settle()
    world.clean()
    world.hold("node-1")
    world.settle()
    world.pass_time(299, silent=("node-1",))
    world.settle()
    assert not world.released
    world.pass_time(2, silent=("node-1",))
    world.settle()
    assert world.released


def test_force_delete_releases_at_once_and_still_removes_the_entries() -> None:
    world = ready_world()
    world.hold("node-1", leases=("pod team/server-0",))
    world.delete()
    world.annotate(ANNOTATION_FORCE_DELETE, "true")
    world.settle()
    assert world.released
    assert world.entries() == {}


def name_also(world: World, **changes: Any) -> WantedArtifact:
    """Let every node have an entry of another artifact with the same key."""
    other = WantedArtifact(
        id="team/other:model",
        namespace="team",
        name="other",
        component="model",
        generation=1,
        storage_class=StorageClass.DISK,
        key=KEY,
        **changes,
    )
    for name, agent in world.agents.items():
        world.agents[name] = replace(agent, entries=(*agent.entries, other))
    return other


def test_bytes_that_another_artifact_names_are_left_and_not_waited_for() -> None:
    world = ready_world()
    other = name_also(world, manifest_sha256=MANIFEST)
    world.delete()
    world.settle()
    world.clean()
    world.settle()
    assert world.released
    for agent in world.agents.values():
        assert agent.entries == (other,)
        assert [held.key for held in agent.inventory] == [KEY]


def test_an_artifact_that_never_began_is_released_at_once() -> None:
    world = World()
    world.delete()
    world.settle()
    assert world.released


def retained_world(**spec: object) -> World:
    world = World(nodes=2, spec={"deletionPolicy": "Retain"} | spec)
    world.finish()
    world.report()
    return world


def test_retained_bytes_keep_their_entries_and_are_not_waited_for() -> None:
    world = retained_world(access={"publishers": [{"serviceAccountName": "trainer"}]})
    world.hold("node-1", leases=("pod team/server-0",))
    world.delete()
    world.settle()
    assert not world.released, "the agents have not read it yet"
    world.clean()
    world.settle()
    entries = [entry for agent in world.agents.values() for entry in agent.entries]
    assert [(each.key, each.job, each.publishers, each.retained) for each in entries] == [
        (KEY, "", [], True)
    ] * 2
    assert [held.key for agent in world.agents.values() for held in agent.inventory] == [KEY] * 2
    assert world.released


def test_what_was_not_whole_is_not_retained() -> None:
    world = World(nodes=1, spec={"deletionPolicy": "Retain"})
    world.settle()
    world.hold("node-0", OTHER_KEY)
    world.delete()
    world.settle()
    assert (world.entries(), world.jobs) == ({}, {})
    world.clean()
    world.settle()
    assert world.released


def test_a_terminating_namespace_retains_nothing() -> None:
    world = retained_world()
    world.terminating = True
    world.delete()
    world.settle()
    assert world.released
    assert world.entries() == {}


def test_a_new_artifact_of_the_name_takes_retained_bytes_over() -> None:
    world = retained_world()
    world.delete()
    world.settle()
    world.clean()
    world.settle()
    again = World(nodes=0, spec={})
    again.nodes, again.agents = world.nodes, world.agents
    again.metadata = again.metadata.model_copy(update={"uid": "uid-2"})
    again.settle()
    (canary,) = again.active()
    waiting = again.agents["node-1"].entries[0]
    assert (waiting.key, waiting.retained) == (KEY, True), "the node serves it until its turn"
    again.succeed(canary, OTHER_KEY)
    again.settle()
    assert again.entries() == {"node-0": OTHER_KEY, "node-1": OTHER_KEY}
    again.finish()
    assert not any(entry.retained for agent in again.agents.values() for entry in agent.entries)


def test_a_key_that_a_retained_entry_names_outlives_another_artifact() -> None:
    world = ready_world()
    name_also(world, retained=True)
    world.delete()
    world.settle()
    world.clean()
    world.settle()
    assert world.released
    assert {held.key for agent in world.agents.values() for held in agent.inventory} == {KEY}
