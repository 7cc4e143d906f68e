"""A real operator against a real API server and Job controller: from CR to Ready and back."""

from __future__ import annotations

import signal
import urllib.request

import pytest

from apiserver import ApiServer
from artifact_client import KEY, Artifact, entries, is_gone, jobs
from simulated_fleet import ROOT, OperatorProcess, SimulatedFleet, digest
from weightlease.names import FINALIZER
from weightlease.reasons import Reason


def test_an_artifact_becomes_ready_on_every_node(
    server: ApiServer, fleet: SimulatedFleet, operator: OperatorProcess, artifact: Artifact
) -> None:
    artifact.create()
    fleet.until(artifact.is_ready, "Ready")
    status = artifact.read().status
    assert status.nodes.summary == "2/2"
    assert [(shard.key, shard.canary_node) for shard in status.shards] == [(KEY, "node-a")]
    assert status.size == "86.7Mi"
    assert fleet.ended == [("node-a", Reason.PUBLISHED), ("node-b", Reason.PUBLISHED)]
    fleet.until(lambda: not jobs(server, artifact.namespace), "finished Jobs are deleted")
    for node in ("node-a", "node-b"):
        (entry,) = entries(server, node)
        assert (entry["key"], entry["job"]) == (KEY, "")


def test_nothing_but_our_finalizer_is_written_to_a_users_object(
    server: ApiServer, fleet: SimulatedFleet, operator: OperatorProcess, artifact: Artifact
) -> None:
    artifact.create()
    before = server.get(artifact.path)["spec"]
    fleet.until(artifact.is_ready, "Ready")
    stored = server.get(artifact.path)
    assert stored["spec"] == before
    assert stored["metadata"]["finalizers"] == [FINALIZER]
    assert "annotations" not in stored["metadata"]
    for kind in ("weightnodes", "weightproducers"):
        for item in server.get(f"{ROOT}/{kind}")["items"]:
            assert "finalizers" not in item["metadata"]
            assert "annotations" not in item["metadata"]


def test_people_are_told_by_events_and_a_wait(
    server: ApiServer, fleet: SimulatedFleet, operator: OperatorProcess, artifact: Artifact
) -> None:
    artifact.create()
    fleet.until(artifact.is_ready, "Ready")

    def told() -> set[str]:
        events = server.get(f"/apis/events.k8s.io/v1/namespaces/{artifact.namespace}/events")
        items = events["items"]
        return {each["reason"] for each in items if each["regarding"]["kind"] == "WeightArtifact"}

    # An event follows the status that it tells of.
    fleet.until(lambda: {Reason.CANARY, Reason.ALL_NODES_READY} <= told(), "both were told")
    waited = server.kubectl(
        "wait", "-n", artifact.namespace, "wa/model", "--for=condition=Ready", "--timeout=5s"
    )
    assert "condition met" in waited.stdout


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_an_operator_that_is_killed_goes_on_where_it_was(
    server: ApiServer,
    fleet: SimulatedFleet,
    operator: OperatorProcess,
    artifact: Artifact,
    moment: str,
) -> None:
    fleet.hold = True
    artifact.create()
    fleet.until(fleet.pods, "the canary's pod")
    if moment == "before":
        operator.stop(signal.SIGKILL)
        fleet.hold = False
        fleet.until(lambda: fleet.ended, "the canary ends while no operator runs")
    else:
        fleet.hold = False
        fleet.until(lambda: artifact.read().status.shards, "the canary fixes the key")
        operator.stop(signal.SIGKILL)
        if moment == "after":
            fleet.pump()
    operator.start()
    fleet.until(artifact.is_ready, "Ready")
    assert sorted(fleet.ended) == [("node-a", Reason.PUBLISHED), ("node-b", Reason.PUBLISHED)]


def test_a_node_that_comes_is_warmed_and_one_that_goes_is_forgotten(
    server: ApiServer, fleet: SimulatedFleet, operator: OperatorProcess, artifact: Artifact
) -> None:
    artifact.create()
    fleet.until(artifact.is_ready, "Ready")
    fleet.add_node("node-c")
    fleet.until(lambda: artifact.read().status.nodes.summary == "3/3", "three nodes")
    fleet.remove_node("node-b")
    fleet.until(lambda: artifact.read().status.nodes.summary == "2/2", "two nodes")
    fleet.until(lambda: is_gone(server, f"{ROOT}/weightnodes/node-b"), "its WeightNode is gone")
    assert artifact.is_ready()


def test_deleting_waits_for_leases_names_their_pods_and_leaves_nothing(
    server: ApiServer, fleet: SimulatedFleet, operator: OperatorProcess, artifact: Artifact
) -> None:
    artifact.create()
    fleet.until(artifact.is_ready, "Ready")
    fleet.leases[KEY] = ["pod team/server-0"]
    server.delete(artifact.path)
    fleet.until(lambda: artifact.reason("Ready") == ("False", Reason.LEASED), "Leased")
    assert "pod team/server-0" in artifact.read().status.conditions[0].message
    assert entries(server, "node-a") == []
    fleet.leases.clear()
    fleet.until(lambda: is_gone(server, artifact.path), "gone")
    assert fleet.stores == {"node-a": {}, "node-b": {}}


def test_a_namespace_can_be_deleted_while_leases_are_held(
    server: ApiServer, fleet: SimulatedFleet, operator: OperatorProcess, artifact: Artifact
) -> None:
    artifact.create()
    fleet.until(artifact.is_ready, "Ready")
    fleet.leases[KEY] = ["pod team/server-0"]
    path = f"/api/v1/namespaces/{artifact.namespace}"
    server.delete(path)
    fleet.until(lambda: is_gone(server, path), "the namespace is gone")
    assert entries(server, "node-a") == []
    assert KEY in fleet.stores["node-a"], "the lease still protects the bytes"


def test_a_failure_is_told_and_tried_again(
    server: ApiServer, fleet: SimulatedFleet, operator: OperatorProcess, artifact: Artifact
) -> None:
    fleet.fail["node-a"] = Reason.SOURCE_UNAVAILABLE
    artifact.create(placement={"nodeSelector": {}}, rollout={"backoffLimit": 100})
    failure = fleet.until(lambda: artifact.read().status.failures, "a failure")[0]
    assert (failure.node, failure.reason) == ("node-a", Reason.SOURCE_UNAVAILABLE)
    fleet.fail.clear()
    fleet.until(artifact.is_ready, "Ready")
    assert artifact.read().status.failures == []


def test_a_failure_that_no_retry_helps_waits_for_the_annotation(
    server: ApiServer, fleet: SimulatedFleet, operator: OperatorProcess, artifact: Artifact
) -> None:
    fleet.fail["node-a"] = Reason.SOURCE_UNAUTHORIZED
    artifact.create()
    expected = ("True", Reason.SOURCE_UNAUTHORIZED)
    fleet.until(lambda: artifact.reason("Degraded") == expected, "Degraded")
    assert fleet.ended == [("node-a", Reason.SOURCE_UNAUTHORIZED)]
    fleet.fail.clear()
    server.patch(artifact.path, {"metadata": {"annotations": {"weightlease.io/retry": "1"}}})
    fleet.until(artifact.is_ready, "Ready")


def test_an_edit_of_the_source_rolls_to_a_new_key(
    server: ApiServer, fleet: SimulatedFleet, operator: OperatorProcess, artifact: Artifact
) -> None:
    artifact.create()
    fleet.until(artifact.is_ready, "Ready")
    revision = "1" * 40
    source = {"source": {"huggingFace": {"revision": revision}}}
    server.patch(artifact.path, {"spec": source})
    fleet.until(artifact.is_ready, "Ready again")
    new = digest(revision, "model")
    assert [shard.key for shard in artifact.read().status.shards] == [new]
    fleet.until(lambda: all(list(store) == [new] for store in fleet.stores.values()), "old cleaned")


def test_artifacts_that_roll_out_at_once_keep_each_others_entries(
    server: ApiServer, fleet: SimulatedFleet, operator: OperatorProcess, namespace: str
) -> None:
    all_of_them = [Artifact(server, namespace, f"model-{number}") for number in range(6)]
    for number, each in enumerate(all_of_them):
        each.create(source={"huggingFace": {"repo": "org/model", "revision": f"{number:040x}"}})
    fleet.until(lambda: all(each.is_ready() for each in all_of_them), "all Ready")
    for node in ("node-a", "node-b"):
        assert sorted(entry["name"] for entry in entries(server, node)) == [
            each.name for each in all_of_them
        ]
    server.delete(all_of_them[0].path)
    fleet.until(lambda: is_gone(server, all_of_them[0].path), "one gone")
    assert len(entries(server, "node-a")) == 5


def test_an_entry_without_an_artifact_is_removed_once_the_server_confirms(
    server: ApiServer, fleet: SimulatedFleet, operator: OperatorProcess, artifact: Artifact
) -> None:
    artifact.create()
    fleet.until(artifact.is_ready, "Ready")
    operator.stop(signal.SIGKILL)
    server.patch(artifact.path, {"metadata": {"finalizers": None}})
    server.delete(artifact.path)
    assert len(entries(server, "node-a")) == 1
    operator.start()
    fleet.until(lambda: not entries(server, "node-a"), "no entry")


def test_it_serves_health_and_metrics_and_stops_on_a_signal(
    server: ApiServer, fleet: SimulatedFleet, operator: OperatorProcess, artifact: Artifact
) -> None:
    artifact.create()
    fleet.until(artifact.is_ready, "Ready")
    (port,) = [line["port"] for line in operator.lines() if line.get("event") == "serving"]
    for path in ("healthz", "readyz"):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
            assert answer.status == 200
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    assert 'weightlease_operator_artifacts{condition="Ready",status="True"} 1.0' in page
    assert "weightlease_operator_jobs_created_total 2.0" in page
    assert operator.stop(signal.SIGTERM) == 0
    operator.start()
