"""What goes wrong with pods and nodes is told by its reason, and what can go on goes on."""

from __future__ import annotations

from typing import Any

import pytest

from apiserver import ApiServer
from artifact_client import KEY, Artifact, jobs
from simulated_fleet import ROOT, Object, OperatorProcess, SimulatedFleet
from weightlease.api.weight_artifact import NodeFailure
from weightlease.reasons import Reason

CLAIM = {"persistentVolumeClaim": {"claimName": "data"}}


@pytest.fixture
def operator_settings() -> dict[str, str]:
    # long enough between attempts for a test to see the failure
    return {"PLAN__START_GRACE_SECONDS": "1", "PLAN__BACKOFF_BASE_SECONDS": "5"}


@pytest.fixture
def first_pod(fleet: SimulatedFleet, operator: OperatorProcess, artifact: Artifact) -> Object:
    """The canary's pod, held."""
    fleet.hold = True
    artifact.create()
    (pod,) = fleet.until(fleet.pods, "the canary's pod")
    found: Object = pod
    return found


def failure(fleet: SimulatedFleet, artifact: Artifact) -> NodeFailure:
    (found,) = fleet.until(lambda: artifact.read().status.failures, "a failure")
    assert isinstance(found, NodeFailure)
    return found


def events(server: ApiServer, namespace: str) -> set[str]:
    items = server.get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")["items"]
    return {each["reason"] for each in items if each["regarding"]["kind"] == "WeightArtifact"}


def goes_on(fleet: SimulatedFleet, artifact: Artifact) -> None:
    fleet.hold = False
    fleet.until(artifact.is_ready, "Ready")
    assert artifact.read().status.failures == []


def claim(server: ApiServer, namespace: str) -> None:
    spec: dict[str, Any] = {
        "accessModes": ["ReadOnlyMany"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    server.create(path, {"metadata": {"name": "data"}, "spec": spec})


def test_a_claim_that_does_not_mount_is_told_before_the_deadline(
    server: ApiServer, fleet: SimulatedFleet, operator: OperatorProcess, artifact: Artifact
) -> None:
    claim(server, artifact.namespace)
    fleet.hold = True
    artifact.create(source=CLAIM)
    (pod,) = fleet.until(fleet.pods, "the canary's pod")
    fleet.bind(pod)
    metadata = pod["metadata"]
    about = {"kind": "Pod", "namespace": metadata["namespace"], "name": metadata["name"]}
    body = {
        "metadata": {"generateName": "mount-"},
        "involvedObject": about | {"uid": metadata["uid"]},
        "type": "Warning",
        "reason": "FailedMount",
        "message": 'MountVolume.SetUp failed for volume "pvc-1": no such export',
    }
    server.create(f"/api/v1/namespaces/{artifact.namespace}/events", body)
    expected = ("True", Reason.SOURCE_NOT_MOUNTABLE)
    fleet.until(lambda: artifact.reason("Degraded") == expected, "Degraded")
    assert "no such export" in failure(fleet, artifact).message
    fleet.until(
        lambda: Reason.SOURCE_NOT_MOUNTABLE in events(server, artifact.namespace), "an event"
    )


def test_an_image_that_cannot_be_pulled_is_told_before_the_deadline(
    fleet: SimulatedFleet, artifact: Artifact, first_pod: Object
) -> None:
    fleet.waits(first_pod, "ImagePullBackOff", "Back-off pulling image")
    expected = ("True", Reason.IMAGE_NOT_PULLABLE)
    fleet.until(lambda: artifact.reason("Degraded") == expected, "Degraded")
    assert failure(fleet, artifact).message == "Back-off pulling image"
    goes_on(fleet, artifact)


def test_a_producer_killed_for_memory_is_tried_again_at_a_stated_time(
    fleet: SimulatedFleet, artifact: Artifact, first_pod: Object
) -> None:
    fleet.killed(first_pod, 137, "OOMKilled")
    found = failure(fleet, artifact)
    assert (found.reason, found.attempts) == (Reason.PRODUCER_CRASHED, 1)
    assert "raise its memory limit" in found.message
    goes_on(fleet, artifact)


def test_an_evicted_pod_costs_no_attempt(
    server: ApiServer, fleet: SimulatedFleet, artifact: Artifact, first_pod: Object
) -> None:
    (job,) = jobs(server, artifact.namespace)
    fleet.evicted(first_pod)
    fleet.until(lambda: len(fleet.pods()) > 1, "the Job makes another pod")
    assert [each["metadata"]["name"] for each in jobs(server, artifact.namespace)] == [
        job["metadata"]["name"]
    ]
    goes_on(fleet, artifact)


def test_a_job_that_is_deleted_by_hand_is_made_again(
    server: ApiServer, fleet: SimulatedFleet, artifact: Artifact, first_pod: Object
) -> None:
    (job,) = jobs(server, artifact.namespace)
    path = f"/apis/batch/v1/namespaces/{artifact.namespace}/jobs/{job['metadata']['name']}"
    server.call("DELETE", path, {"propagationPolicy": "Background"})

    def another() -> bool:
        found = [each["metadata"]["uid"] for each in jobs(server, artifact.namespace)]
        return bool(found) and job["metadata"]["uid"] not in found

    fleet.until(another, "another Job")
    goes_on(fleet, artifact)


def test_a_node_that_comes_back_empty_under_its_name_is_warmed_again(
    server: ApiServer, fleet: SimulatedFleet, operator: OperatorProcess, artifact: Artifact
) -> None:
    artifact.create()
    fleet.until(artifact.is_ready, "Ready")
    before = server.get(f"{ROOT}/weightnodes/node-b")["metadata"]["uid"]
    fleet.remove_node("node-b")
    fleet.add_node("node-b")

    def renewed() -> bool:
        found = [
            each["metadata"]["uid"]
            for each in server.get(f"{ROOT}/weightnodes")["items"]
            if each["metadata"]["name"] == "node-b"
        ]
        return bool(found) and found != [before]

    fleet.until(renewed, "a WeightNode of the new Node")
    fleet.until(lambda: KEY in fleet.stores["node-b"] and artifact.is_ready(), "warm again")
    assert artifact.read().status.nodes.summary == "2/2"


def test_a_node_that_loses_its_bytes_is_warmed_again(
    fleet: SimulatedFleet, operator: OperatorProcess, artifact: Artifact
) -> None:
    artifact.create()
    fleet.until(artifact.is_ready, "Ready")
    fleet.stores["node-a"].clear()
    fleet.until(lambda: not artifact.is_ready(), "not Ready")
    fleet.until(artifact.is_ready, "Ready again")
    assert KEY in fleet.stores["node-a"]
