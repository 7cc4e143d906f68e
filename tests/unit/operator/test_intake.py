"""Events wake those they concern, and nobody else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from planning_world import HUB, PRODUCER
from weightlease_operator.fleet import Fleet
from weightlease_operator.intake import Intake
from weightlease_operator.kinds import AGENTS, ARTIFACTS, JOBS, NODES, PODS, PRODUCERS, Kind

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


class Woken:
    """An intake that remembers whom it woke since it was last asked."""

    def __init__(self) -> None:
        self.artifacts: list[str] = []
        self.nodes: list[str] = []
        self._version = 0
        self.fleet = Fleet()
        self.intake = Intake(
            self.fleet,
            wake_artifact=lambda key: self.artifacts.append(key[1]),
            wake_node=self.nodes.append,
            clock=lambda: NOW,
            grace=timedelta(seconds=120),
        )
        for name in ("one", "two"):
            self.event(ARTIFACTS, artifact(name))
        self.event(NODES, node())
        self.event(AGENTS, agent())
        self.asked()

    def event(self, kind: Kind, raw: dict[str, Any], *, deleted: bool = False) -> None:
        self._version += 1
        raw["metadata"]["resourceVersion"] = str(self._version)
        self.intake.event(kind, deleted=deleted, raw=raw)

    def asked(self) -> list[str]:
        found = sorted(set(self.artifacts))
        self.artifacts.clear()
        return found


def artifact(name: str, **metadata: Any) -> dict[str, Any]:
    base = {"name": name, "namespace": "team", "uid": f"uid-{name}", "generation": 1}
    return {"metadata": base | metadata, "spec": {"source": HUB, "producerRef": {"name": name}}}


def node(**spec: Any) -> dict[str, Any]:
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": "node-0", "uid": "u"}, "spec": spec, "status": ready}


def agent(reported: str = "2026-11-30T12:00:00Z", *held: str, observed: int = 1) -> dict[str, Any]:
    inventory = [
        {
            "namespace": "team",
            "storageClass": "disk",
            "key": "a" * 64,
            "state": "Ready",
            "wantedId": f"team/{name}:model",
        }
        for name in held
    ]
    status = {"reportedAt": reported, "inventory": inventory, "observedGeneration": observed}
    return {"metadata": {"name": "node-0"}, "spec": {}, "status": status}


def test_an_event_that_changes_nothing_wakes_nobody() -> None:
    woken = Woken()
    woken.event(ARTIFACTS, artifact("one") | {"status": {}})
    before = woken.asked()
    woken.event(NODES, node())
    assert before == ["one"], "the version itself is part of the view, for conflict checks"
    assert woken.asked() == []


def test_a_node_wakes_every_artifact() -> None:
    woken = Woken()
    woken.event(NODES, node(unschedulable=True))
    assert woken.asked() == ["one", "two"]
    woken.event(NODES, node(), deleted=True)
    assert woken.asked() == ["one", "two"]


def test_a_report_wakes_those_with_bytes_there_and_a_heartbeat_nobody() -> None:
    woken = Woken()
    woken.event(AGENTS, agent("2026-11-30T12:00:10Z"))
    assert woken.asked() == []
    woken.event(AGENTS, agent("2026-11-30T12:00:20Z", "two"))
    assert woken.asked() == ["two"]


def test_an_agent_that_comes_back_wakes_all() -> None:
    woken = Woken()
    woken.event(AGENTS, agent("2026-11-30T11:00:00Z"))
    woken.asked()
    woken.event(AGENTS, agent())
    assert woken.asked() == ["one", "two"]


def test_an_agent_that_has_read_its_spec_wakes_what_is_being_deleted() -> None:
    woken = Woken()
    woken.event(ARTIFACTS, artifact("one", deletionTimestamp="2026-11-30T12:00:00Z"))
    woken.asked()
    woken.event(AGENTS, agent(observed=2))
    assert woken.asked() == ["one"]


def test_a_producer_wakes_those_that_name_it() -> None:
    woken = Woken()
    woken.event(PRODUCERS, {"metadata": {"name": "two"}, "spec": PRODUCER.to_json()})
    assert woken.asked() == ["two"]


def test_a_job_and_its_pod_wake_their_artifact() -> None:
    woken = Woken()
    labels = {"weightlease.io/artifact-uid": "uid-two"}
    metadata = {"name": "job", "namespace": "team", "labels": labels}
    for kind in (JOBS, PODS):
        woken.event(kind, {"metadata": dict(metadata)})
        assert woken.asked() == ["two"]
    woken.event(JOBS, {"metadata": dict(metadata)}, deleted=True)
    assert woken.asked() == ["two"]


def test_an_object_that_makes_no_sense_changes_nothing() -> None:
    woken = Woken()
    known = woken.fleet.agents.get("", "node-0")
    woken.event(AGENTS, {"metadata": {"name": "node-0"}, "spec": {"artifacts": "all"}})
    assert woken.fleet.agents.get("", "node-0") is known
    assert woken.asked() == []


def test_a_report_that_makes_no_sense_leaves_the_spec_known() -> None:
    woken = Woken()
    woken.event(AGENTS, agent() | {"status": {"inventory": 7}})
    known = woken.fleet.agents.get("", "node-0")
    assert known is not None
    assert known.reported_at is None


def test_a_whole_list_wakes_for_what_the_watch_missed() -> None:
    woken = Woken()
    two = artifact("two")
    two["metadata"]["resourceVersion"] = "2"
    woken.intake.listed(ARTIFACTS, [two], "50")
    assert woken.asked() == ["one"]
