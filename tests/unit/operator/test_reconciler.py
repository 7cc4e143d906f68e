"""Observing, planning and applying against an API that changes, refuses and fails meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fake_api import FakeApi
from planning_world import HUB, PRODUCER
from weightlease.names import FINALIZER
from weightlease.reasons import Reason
from weightlease_operator.api_errors import Conflict, Refused, Unavailable
from weightlease_operator.applying import Applier, JobRefused
from weightlease_operator.fleet import Fleet
from weightlease_operator.kinds import (
    AGENTS,
    ARTIFACTS,
    CLAIMS,
    JOBS,
    NAMESPACES,
    NODES,
    PRODUCERS,
    Kind,
)
from weightlease_operator.metrics import Metrics
from weightlease_operator.observation import ArtifactView
from weightlease_operator.plans import PlannedEvent
from weightlease_operator.reconciler import Reconciler
from weightlease_operator.settings import JobSettings, PlanSettings

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
KEY = ("team", "model")
OTHER = {
    "id": "team/other:model",
    "namespace": "team",
    "name": "other",
    "component": "model",
    "generation": 1,
    "storageClass": "disk",
    "key": "f" * 64,
    "manifestSha256": "e" * 64,
    "job": "",
}


class Events:
    """Remembers what would have been told."""

    def __init__(self) -> None:
        self.told: list[PlannedEvent] = []

    async def record(self, artifact: ArtifactView, event: PlannedEvent) -> None:
        self.told.append(event)


class Setting:
    """A reconciler with everything around it, and one artifact on two nodes."""

    def __init__(self, **spec: Any) -> None:
        self.api, self.fleet, self.events = FakeApi(), Fleet(), Events()
        metrics = Metrics(CollectorRegistry())
        applier = Applier(self.api, self.fleet, self.events, JobSettings(), metrics)
        self.reconciler = Reconciler(self.api, self.fleet, applier, PlanSettings(), lambda: NOW)
        metadata = {"name": "model", "namespace": "team", "uid": "uid-1", "generation": 1}
        self.put(ARTIFACTS, {"metadata": metadata, "spec": {"source": HUB} | spec})
        self.put(PRODUCERS, {"metadata": {"name": "snapshot"}, "spec": PRODUCER.to_json()})
        for name in ("node-0", "node-1"):
            ready = {"conditions": [{"type": "Ready", "status": "True"}]}
            self.put(NODES, {"metadata": {"name": name, "uid": name}, "status": ready})

    def put(self, kind: Kind, body: dict[str, Any]) -> None:
        """Store it, and let the watch tell."""
        self.fleet.cache(kind).put(self.api.put(kind, body))

    def add_agents(self) -> None:
        for name in ("node-0", "node-1"):
            status = {"reportedAt": "2026-11-30T12:00:00Z"}
            self.put(AGENTS, {"metadata": {"name": name}, "spec": {}, "status": status})

    def stored(self, kind: Kind, name: str, namespace: str = "") -> dict[str, Any]:
        return self.api.objects[kind.plural, namespace, name]

    def artifact(self) -> dict[str, Any]:
        return self.stored(ARTIFACTS, "model", "team")

    def entry_names(self, node: str) -> list[str]:
        return [each["name"] for each in self.stored(AGENTS, node)["spec"].get("artifacts", ())]

    def ready(self) -> tuple[str, str]:
        (found,) = [c for c in self.artifact()["status"]["conditions"] if c["type"] == "Ready"]
        return found["status"], found["reason"]

    def jobs(self) -> list[str]:
        return sorted(name for plural, _, name in self.api.objects if plural == "jobs")

    async def settle(self) -> None:
        """Reconcile for as long as it asks to be called again at once: no event helps it on."""
        for _ in range(10):
            if await self.reconciler.artifact(KEY) != 0.0:
                return
        raise AssertionError("it does not settle")


@pytest.fixture
async def setting() -> Setting:
    found = Setting()
    found.add_agents()
    return found


async def test_it_settles_and_a_second_look_writes_nothing(setting: Setting) -> None:
    await setting.settle()
    calls = len(setting.api.calls)
    await setting.reconciler.artifact(KEY)
    assert len(setting.api.calls) == calls
    assert len(setting.jobs()) == 1
    assert setting.artifact()["metadata"]["finalizers"] == [FINALIZER]
    assert setting.ready() == ("False", Reason.CANARY)


async def test_the_entry_is_written_before_its_job_and_the_status_after(setting: Setting) -> None:
    await setting.settle()
    kinds = [plural for _, plural, _ in setting.api.calls]
    assert kinds == ["weightartifacts", "weightnodes", "jobs", "weightartifacts"]


async def test_an_entry_that_came_meanwhile_is_kept(setting: Setting) -> None:
    def another_artifact(verb: str, plural: str, name: str) -> None:
        if plural == "weightnodes" and setting.entry_names(name) == []:
            node = setting.stored(AGENTS, name)
            setting.api.put(AGENTS, node | {"spec": {"artifacts": [OTHER]}})

    setting.api.before = another_artifact
    await setting.settle()
    assert setting.entry_names("node-0") == ["model", "other"]


async def test_a_node_that_changes_without_end_is_given_up_for_now(setting: Setting) -> None:
    def always_changed(verb: str, plural: str, name: str) -> None:
        if plural == "weightnodes":
            setting.api.put(AGENTS, setting.stored(AGENTS, name))

    setting.api.before = always_changed
    await setting.reconciler.artifact(KEY)
    with pytest.raises(Conflict):
        await setting.reconciler.artifact(KEY)
    assert setting.jobs() == [], "no Job without its entry"


async def test_a_finalizer_of_somebody_else_survives(setting: Setting) -> None:
    theirs = setting.artifact()
    theirs["metadata"]["finalizers"] = ["example.com/theirs"]
    setting.put(ARTIFACTS, theirs)
    await setting.reconciler.artifact(KEY)
    assert setting.artifact()["metadata"]["finalizers"] == ["example.com/theirs", FINALIZER]


async def test_a_stale_view_adds_no_finalizer_over_a_newer_list(setting: Setting) -> None:
    theirs = setting.artifact()
    theirs["metadata"]["finalizers"] = ["example.com/theirs"]
    setting.api.put(ARTIFACTS, theirs)  # the watch has not told yet
    with pytest.raises(Conflict):
        await setting.reconciler.artifact(KEY)
    assert setting.artifact()["metadata"]["finalizers"] == ["example.com/theirs"]


async def test_a_refused_job_is_told_and_tried_again(setting: Setting) -> None:
    def quota(verb: str, plural: str, name: str) -> None:
        if (verb, plural) == ("create", "jobs"):
            raise Refused("exceeded quota: jobs", 403)

    await setting.reconciler.artifact(KEY)
    setting.api.before = quota
    for _ in range(2):
        with pytest.raises(JobRefused):
            await setting.reconciler.artifact(KEY)
        assert setting.ready() == ("False", Reason.PREWARM_FAILED)
        assert "exceeded quota" in setting.artifact()["status"]["conditions"][0]["message"]
    setting.api.before = lambda _verb, _plural, _name: None
    await setting.settle()
    assert len(setting.jobs()) == 1
    assert setting.ready() == ("False", Reason.CANARY)


async def test_a_failure_half_way_is_made_good_by_the_next_pass(setting: Setting) -> None:
    await setting.reconciler.artifact(KEY)

    def away(verb: str, plural: str, name: str) -> None:
        if (verb, plural) == ("create", "jobs"):
            raise Unavailable("no answer")

    setting.api.before = away
    with pytest.raises(Unavailable):
        await setting.reconciler.artifact(KEY)
    setting.api.before = lambda _verb, _plural, _name: None
    await setting.settle()
    (job,) = setting.jobs()
    (entry,) = setting.stored(AGENTS, "node-0")["spec"]["artifacts"]
    assert entry["job"] == job


async def test_a_job_that_a_lost_answer_created_counts_as_ours(setting: Setting) -> None:
    await setting.settle()
    (name,) = setting.jobs()
    setting.fleet.jobs.forget("team", name)
    await setting.settle()
    assert setting.jobs() == [name]


async def test_a_strangers_job_in_the_way_is_named(setting: Setting) -> None:
    await setting.settle()
    (name,) = setting.jobs()
    setting.api.put(JOBS, {"metadata": {"name": name, "namespace": "team"}})
    setting.fleet.jobs.forget("team", name)
    with pytest.raises(JobRefused, match="not ours"):
        await setting.reconciler.artifact(KEY)


async def test_an_artifact_that_goes_while_its_status_is_written_is_done(setting: Setting) -> None:
    await setting.reconciler.artifact(KEY)

    def goes(verb: str, plural: str, name: str) -> None:
        if (verb, plural) == ("patch", "weightartifacts"):
            setting.api.objects.pop((ARTIFACTS.plural, "team", "model"), None)

    setting.api.before = goes
    await setting.reconciler.artifact(KEY)
    assert setting.api.calls[-1] == ("patch", "weightartifacts", "model")
    calls = len(setting.api.calls)
    assert await setting.reconciler.artifact(KEY) is None
    assert len(setting.api.calls) == calls


async def test_a_missing_claim_is_named(setting: Setting) -> None:
    lost = Setting(source={"persistentVolumeClaim": {"claimName": "data"}})
    lost.add_agents()
    await lost.settle()
    assert lost.ready() == ("False", Reason.SOURCE_NOT_MOUNTABLE)
    claim = {"metadata": {"name": "data", "namespace": "team"}}
    lost.api.put(CLAIMS, claim | {"spec": {"accessModes": ["ReadWriteOnce"]}})
    await lost.settle()
    assert len(lost.jobs()) == 1


async def test_every_node_gets_a_weight_node_that_it_owns() -> None:
    setting = Setting()
    await setting.reconciler.node("node-0")
    await setting.reconciler.node("node-0")
    (owner,) = setting.stored(AGENTS, "node-0")["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "node-0", "node-0")
    assert [verb for verb, _, _ in setting.api.calls] == ["create"]


async def test_an_orphans_entry_goes_only_when_the_server_confirms(setting: Setting) -> None:
    node = setting.stored(AGENTS, "node-0")
    setting.put(AGENTS, node | {"spec": {"artifacts": [OTHER]}})
    other = {"metadata": {"name": "other", "namespace": "team"}, "spec": {"source": HUB}}
    setting.api.put(ARTIFACTS, other)  # there, but not yet in the cache
    await setting.reconciler.node("node-0")
    assert setting.entry_names("node-0") == ["other"]
    await setting.api.delete(ARTIFACTS, "team", "other")
    await setting.reconciler.node("node-0")
    assert setting.entry_names("node-0") == []


async def test_an_object_that_does_not_parse_is_told_and_can_be_deleted(setting: Setting) -> None:
    await setting.settle()
    broken = setting.artifact()
    broken["spec"] = {"source": {"ftp": {}}}
    broken["metadata"]["generation"] = 2
    setting.put(ARTIFACTS, broken)
    await setting.settle()
    assert setting.ready() == ("False", Reason.SPEC_INVALID)
    broken = setting.artifact()
    broken["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z"
    setting.put(ARTIFACTS, broken)
    terminating = {"name": "team", "deletionTimestamp": "2026-11-30T12:00:00Z"}
    setting.api.put(NAMESPACES, {"metadata": terminating})
    await setting.reconciler.artifact(KEY)
    for name in setting.jobs():
        raw = setting.stored(JOBS, name, "team")
        setting.fleet.jobs.remove(raw)
    assert setting.jobs() == []
    setting.fleet.jobs.replace([], "9999")
    await setting.reconciler.artifact(KEY)
    assert setting.artifact()["metadata"]["finalizers"] == []


async def test_a_retained_entry_goes_with_its_namespace_alone() -> None:
    setting = Setting()
    entry = OTHER | {"retained": True}
    for name in ("node-0", "node-1"):
        status = {"reportedAt": "2026-11-30T12:00:00Z"}
        body = {"metadata": {"name": name}, "spec": {"artifacts": [entry]}, "status": status}
        setting.put(AGENTS, body)
    setting.api.put(NAMESPACES, {"metadata": {"name": "team"}})
    await setting.reconciler.node("node-0")
    assert setting.entry_names("node-0") == ["other"]
    setting.api.put(NAMESPACES, {"metadata": {"name": "team", "deletionTimestamp": "now"}})
    await setting.reconciler.node("node-0")
    assert setting.entry_names("node-0") == ["other"], "the namespace is not asked about each time"
    setting.reconciler.clock = lambda: NOW + timedelta(minutes=2)
    for name in ("node-0", "node-1"):
        await setting.reconciler.node(name)
        assert setting.entry_names(name) == []
