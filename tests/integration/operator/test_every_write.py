"""An operator killed at any of its writes leaves nothing that the next one cannot finish."""

from __future__ import annotations

import signal
from itertools import count
from pathlib import Path

import pytest

from apiserver import ApiServer
from artifact_client import Artifact, jobs
from simulated_fleet import FAST, OperatorProcess, SimulatedFleet
from weightlease.reasons import Reason

# what one life tells: a canary, a rollout, ready, deleting; a restart may tell one thing again
EVENTS_AT_MOST = 8
ONCE_PER_NODE = [("node-a", Reason.PUBLISHED), ("node-b", Reason.PUBLISHED)]


def told(server: ApiServer, namespace: str) -> list[str]:
    events = server.get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")["items"]
    return [each["reason"] for each in events if each["regarding"]["kind"] == "WeightArtifact"]


def live_and_die(
    server: ApiServer, fleet: SimulatedFleet, operator: OperatorProcess, following: OperatorProcess
) -> bool:
    """One artifact from its creation until it is gone; whether the operator was killed."""
    name = server.create("/api/v1/namespaces", {"metadata": {"generateName": "life-"}})
    artifact = Artifact(server, name["metadata"]["name"])
    fleet.ended.clear()

    def followed(reached: bool) -> bool:
        if not operator.is_running() and not following.is_running():
            following.start()
        return reached

    artifact.create()
    fleet.until(lambda: followed(artifact.is_ready()), "Ready")
    assert sorted(fleet.ended) == ONCE_PER_NODE
    artifact.delete()
    fleet.until(lambda: followed(artifact.is_gone()), "gone")
    assert sorted(fleet.ended) == ONCE_PER_NODE
    assert fleet.stores == {"node-a": {}, "node-b": {}}
    assert jobs(server, artifact.namespace) == []
    assert len(told(server, artifact.namespace)) <= EVENTS_AT_MOST
    return following.is_running()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_operator_killed_at_each_of_its_writes_is_followed_by_one_that_finishes(
    server: ApiServer, kubeconfig: Path, fleet: SimulatedFleet, tmp_path: Path, moment: str
) -> None:
    log = tmp_path / "operator.log"
    for number in count(1):
        failpoint = {"FAILPOINT": f"{moment}:{number}"}
        operator = OperatorProcess(kubeconfig, log, FAST | failpoint)
        following = OperatorProcess(kubeconfig, log, FAST)
        operator.start()
        try:
            killed = live_and_die(server, fleet, operator, following)
        finally:
            for each in (operator, following):
                each.stop(signal.SIGKILL)
        if not killed:
            assert number > len(ONCE_PER_NODE) * 5, "a life has more writes than that"
            return
