"""Deleting and changing on a real API server: what stays, what goes, and that nothing hangs."""

from __future__ import annotations

import pytest

from apiserver import ApiServer
from artifact_client import KEY, Artifact, entries, is_gone
from simulated_fleet import OperatorProcess, SimulatedFleet, digest
from weightlease.names import ANNOTATION_FORCE_DELETE
from weightlease.reasons import Reason

OTHER = "1" * 40


@pytest.fixture
def operator_settings() -> dict[str, str]:
    return {"PLAN__DELETE_GRACE_SECONDS": "3", "PLAN__AGENT_GRACE_SECONDS": "3"}


def of_revision(revision: str) -> dict[str, object]:
    return {"huggingFace": {"repo": "org/model", "revision": revision}}


def test_two_artifacts_of_one_key_go_one_after_the_other(
    server: ApiServer, fleet: SimulatedFleet, operator: OperatorProcess, namespace: str
) -> None:
    first, second = (Artifact(server, namespace, name) for name in ("first", "second"))
    for each in (first, second):
        each.create()
        fleet.until(each.is_ready, "Ready")
    first.delete()
    fleet.until(first.is_gone, "the first is gone")
    assert second.is_ready()
    assert [list(store) for store in fleet.stores.values()] == [[KEY], [KEY]]
    second.delete()
    fleet.until(second.is_gone, "the second is gone")
    assert fleet.stores == {"node-a": {}, "node-b": {}}


def test_an_agent_that_is_gone_for_good_is_dropped(
    server: ApiServer, fleet: SimulatedFleet, operator: OperatorProcess, artifact: Artifact
) -> None:
    artifact.create()
    fleet.until(artifact.is_ready, "Ready")
    fleet.silent.add("node-b")
    artifact.delete()
    fleet.until(artifact.is_gone, "gone without the silent agent")
    assert fleet.stores["node-a"] == {}
    assert entries(server, "node-b") == [], "an agent that comes back finds nothing wanted"


def test_force_delete_releases_what_is_leased(
    server: ApiServer, fleet: SimulatedFleet, operator: OperatorProcess, artifact: Artifact
) -> None:
    artifact.create()
    fleet.until(artifact.is_ready, "Ready")
    fleet.leases[KEY] = ["team/server-0"]
    artifact.delete()
    fleet.until(lambda: artifact.reason("Ready") == ("False", Reason.LEASED), "Leased")
    artifact.annotate(ANNOTATION_FORCE_DELETE, "true")
    fleet.until(artifact.is_gone, "released")
    assert KEY in fleet.stores["node-a"], "the lease still protects the bytes"


def test_retained_bytes_are_taken_over_and_go_with_their_namespace(
    server: ApiServer, fleet: SimulatedFleet, operator: OperatorProcess, artifact: Artifact
) -> None:
    artifact.create(deletionPolicy="Retain")
    fleet.until(artifact.is_ready, "Ready")
    artifact.delete()
    fleet.until(artifact.is_gone, "gone")
    assert [entry["retained"] for entry in entries(server, "node-a")] == [True]
    artifact.create(deletionPolicy="Retain")
    fleet.until(artifact.is_ready, "Ready again")
    assert [entry["retained"] for entry in entries(server, "node-a")] == [False]
    artifact.delete()
    fleet.until(artifact.is_gone, "gone again")
    assert KEY in fleet.stores["node-a"]


def test_an_edit_in_the_middle_of_a_rollout_serves_the_old_until_the_new_is_there(
    server: ApiServer, fleet: SimulatedFleet, operator: OperatorProcess, artifact: Artifact
) -> None:
    artifact.create(rollout={"maxConcurrentNodes": 1})
    fleet.until(artifact.is_ready, "Ready")
    fleet.hold = True
    server.patch(artifact.path, {"spec": {"source": of_revision(OTHER)}})
    fleet.until(fleet.pods, "the new canary")
    server.patch(artifact.path, {"spec": {"source": of_revision("2" * 40)}})
    fleet.until(lambda: artifact.reason("Ready") == ("False", Reason.CANARY), "a newer canary")
    (waiting,) = entries(server, "node-b")
    assert (waiting["key"], waiting["job"]) == (KEY, "")
    assert all(KEY in store for store in fleet.stores.values()), "both nodes still serve the old"
    fleet.hold = False
    fleet.until(artifact.is_ready, "Ready on the newest")
    newest = digest("2" * 40, "model")
    fleet.until(
        lambda: all(list(store) == [newest] for store in fleet.stores.values()),
        "only the newest is left",
    )


def test_a_namespace_with_a_running_rollout_and_a_silent_agent_can_be_deleted(
    server: ApiServer, fleet: SimulatedFleet, operator: OperatorProcess, artifact: Artifact
) -> None:
    fleet.hold = True
    artifact.create(deletionPolicy="Retain")
    fleet.until(fleet.pods, "the canary's pod")
    fleet.silent.add("node-a")
    path = f"/api/v1/namespaces/{artifact.namespace}"
    server.delete(path)
    fleet.until(artifact.is_gone, "the artifact is gone")
    assert entries(server, "node-a") == []
    fleet.until(lambda: is_gone(server, path), "the namespace is gone")
