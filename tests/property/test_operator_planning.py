"""Whatever happens in whatever order, planning is idempotent, bounded and reaches Ready."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from planning_world import KEY, MANIFEST, OTHER_KEY, OTHER_MANIFEST, World
from weightlease.reasons import EXIT_STATUS, Reason
from weightlease_operator.planning import plan

REASONS = sorted(reason for reason, status in EXIT_STATUS.items() if status.code)
DIGESTS = {"0" * 40: (KEY, MANIFEST), "1" * 40: (OTHER_KEY, OTHER_MANIFEST)}


class Fleet(RuleBasedStateMachine):
    """A user, nodes, agents and Jobs that do anything they may, and a planner that answers."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(nodes=0)
        self.revision = "0" * 40
        self.limit = 2
        self.added = 0

    @initialize(nodes=st.integers(1, 5), limit=st.integers(1, 3))
    def begin(self, nodes: int, limit: int) -> None:
        self.limit = limit
        self.world = World(nodes=nodes, spec={"rollout": self.rollout()})
        self.plan_twice()

    def rollout(self, **changes: Any) -> dict[str, Any]:
        return {"maxConcurrentNodes": self.limit, "backoffLimit": 1} | changes

    def plan_twice(self) -> None:
        """Apply a plan; the next one must have nothing to write, nor after a restart."""
        self.world.step()
        again = plan(self.world.observe())
        assert not again.writes, again
        assert plan(self.world.observe()) == again
        self.world.sample = None  # a restarted operator remembers nothing
        restarted = plan(self.world.observe())
        assert (restarted.start, restarted.delete, restarted.entries) == ((), (), {})

    @rule(data=st.data())
    def a_job_succeeds(self, data: st.DataObject) -> None:
        if self.world.active():
            job = data.draw(st.sampled_from(self.world.active()))
            self.world.succeed(job, *DIGESTS[self.revision])
            self.plan_twice()

    @rule(data=st.data(), reason=st.sampled_from(REASONS))
    def a_job_fails(self, data: st.DataObject, reason: Reason) -> None:
        if self.world.active():
            self.world.fail(data.draw(st.sampled_from(self.world.active())), reason)
            self.plan_twice()

    @rule(data=st.data())
    def a_job_is_deleted(self, data: st.DataObject) -> None:
        if self.world.jobs:
            del self.world.jobs[data.draw(st.sampled_from(sorted(self.world.jobs)))]
            self.plan_twice()

    @rule(seconds=st.sampled_from([1, 10, 100, 1000]), data=st.data())
    def time_passes(self, seconds: int, data: st.DataObject) -> None:
        names = sorted(self.world.agents)
        silent = data.draw(st.sets(st.sampled_from(names))) if names else set()
        self.world.pass_time(seconds, silent=tuple(silent))
        self.plan_twice()

    @rule()
    def a_node_comes(self) -> None:
        self.added += 1
        self.world.add_node(f"new-{self.added}")
        self.plan_twice()

    @rule(data=st.data())
    def a_node_goes(self, data: st.DataObject) -> None:
        if self.world.nodes:
            self.world.remove_node(data.draw(st.sampled_from(sorted(self.world.nodes))))
            self.plan_twice()

    @rule(data=st.data(), away=st.booleans())
    def a_node_is_cordoned(self, data: st.DataObject, *, away: bool) -> None:
        if self.world.nodes:
            name = data.draw(st.sampled_from(sorted(self.world.nodes)))
            self.world.change_node(name, unschedulable=away)
            self.plan_twice()

    @rule(data=st.data())
    def bytes_vanish(self, data: st.DataObject) -> None:
        if self.world.nodes:
            name = data.draw(st.sampled_from(sorted(self.world.nodes)))
            self.world.drop(name, data.draw(st.sampled_from([KEY, OTHER_KEY])))
            self.plan_twice()

    @rule(value=st.sampled_from(["a", "b"]))
    def a_person_retries(self, value: str) -> None:
        self.world.retry(value)
        self.plan_twice()

    @rule(revision=st.sampled_from(sorted(DIGESTS)))
    def a_person_edits_the_source(self, revision: str) -> None:
        self.revision = revision
        self.world.edit(source={"huggingFace": {"repo": "org/model", "revision": revision}})
        self.plan_twice()

    @rule(suspend=st.booleans())
    def a_person_suspends(self, *, suspend: bool) -> None:
        self.world.edit(rollout=self.rollout(suspend=suspend))
        self.plan_twice()

    @invariant()
    def one_job_per_node_and_the_limit_holds(self) -> None:
        nodes = [job.node for job in self.world.active()]
        assert len(nodes) == len(set(nodes))
        assert len(nodes) <= self.limit

    @invariant()
    def ready_means_that_every_counted_node_holds_what_was_asked(self) -> None:
        status = self.world.status
        if not status.conditions or self.world.ready[0] != "True":
            return
        key, manifest = DIGESTS[self.revision]
        assert [(shard.key, shard.manifest_sha256) for shard in status.shards] == [(key, manifest)]
        assert status.nodes.ready == status.nodes.desired > 0

    def teardown(self) -> None:
        """When everything goes well from here on, it ends Ready."""
        world = self.world
        world.add_node("last")
        for name in world.nodes:
            world.change_node(name, unschedulable=False)
        world.pass_time(1000)
        world.edit(rollout=self.rollout())
        world.retry("last")
        for _ in range(60):
            world.settle()
            if world.ready[0] == "True":
                return
            for job in world.active():
                world.succeed(job, *DIGESTS[self.revision])
            world.pass_time(60)
        raise AssertionError(f"not Ready in the end: {world.status}")


Fleet.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestFleet = Fleet.TestCase
