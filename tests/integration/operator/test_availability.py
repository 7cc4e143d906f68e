"""Two operators: one works, the other takes over whatever happens to it or the API server."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apiserver import ApiServer
from artifact_client import Artifact
from simulated_fleet import OperatorProcess, SimulatedFleet, operator_running
from weightlease.reasons import Reason

SYSTEM = "weightlease-system"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/weightlease-operator"
ELECTION = {
    "ELECTION__NAMESPACE": SYSTEM,
    "ELECTION__LEASE_SECONDS": "6",
    "ELECTION__DEADLINE_SECONDS": "5",
    "ELECTION__RENEW_SECONDS": "1",
    "ELECTION__RETRY_SECONDS": "0.5",
}
Pair = dict[str, OperatorProcess]


@pytest.fixture
def pair(
    server: ApiServer, kubeconfig: Path, fleet: SimulatedFleet, namespace: str, tmp_path: Path
) -> Iterator[Pair]:
    """Operators named `one`, which leads, and `two`; their artifacts are gone afterwards."""
    one, two = ELECTION | {"ELECTION__IDENTITY": "one"}, ELECTION | {"ELECTION__IDENTITY": "two"}
    with operator_running(kubeconfig, tmp_path / "one.log", **one) as first:
        fleet.until(lambda: holder(server) == "one", "the first leads")
        with operator_running(kubeconfig, tmp_path / "two.log", **two) as second:
            fleet.until(lambda: "standing by" in events_of(second), "the second stands by")
            yield {"one": first, "two": second}
            fleet.calm()
            path = f"/apis/weightlease.io/v1alpha1/namespaces/{namespace}/weightartifacts"
            server.delete(path)
            fleet.until(lambda: not server.get(path)["items"], "no artifact is left")


def lease(server: ApiServer) -> dict[str, Any]:
    items = server.get(LEASE.rpartition("/")[0])["items"]
    return items[0]["spec"] if items else {}


def holder(server: ApiServer) -> str:
    return str(lease(server).get("holderIdentity", ""))


def events_of(operator: OperatorProcess) -> list[str]:
    return [line.get("event", "") for line in operator.lines()]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_the_other_finishes_what_the_leader_began(
    server: ApiServer,
    fleet: SimulatedFleet,
    pair: Pair,
    artifact: Artifact,
    number: signal.Signals,
) -> None:
    fleet.ended.clear()
    fleet.hold = True
    artifact.create()
    fleet.until(fleet.pods, "the canary's pod")
    transitions = lease(server)["leaseTransitions"]
    pair["one"].stop(number)
    fleet.hold = False
    fleet.until(lambda: holder(server) == "two", "the other leads")
    fleet.until(artifact.is_ready, "Ready")
    assert sorted(fleet.ended) == [("node-a", Reason.PUBLISHED), ("node-b", Reason.PUBLISHED)]
    assert lease(server)["leaseTransitions"] == transitions + 1


def test_a_standby_does_nothing(
    server: ApiServer, fleet: SimulatedFleet, pair: Pair, artifact: Artifact
) -> None:
    artifact.create()
    fleet.until(artifact.is_ready, "Ready")
    assert holder(server) == "one"
    assert "leading" not in events_of(pair["two"])


def test_a_leader_that_was_frozen_ends_when_it_wakes(
    server: ApiServer, fleet: SimulatedFleet, pair: Pair, artifact: Artifact
) -> None:
    pair["one"].send(signal.SIGSTOP)
    artifact.create()
    fleet.until(lambda: holder(server) == "two", "the other leads")
    pair["one"].send(signal.SIGCONT)
    fleet.until(lambda: not pair["one"].is_running(), "the first has ended")
    assert pair["one"].wait() == 1
    fleet.until(artifact.is_ready, "Ready")
    assert holder(server) == "two"


def test_an_api_server_that_restarts_stops_nothing_for_good(
    server: ApiServer, fleet: SimulatedFleet, pair: Pair, artifact: Artifact
) -> None:
    fleet.hold = True
    artifact.create()
    fleet.until(fleet.pods, "the canary's pod")
    server.program.stop()
    server.program.start()
    server.wait_until_it_answers()
    fleet.hold = False

    def is_ready() -> bool:
        for each in pair.values():  # as a kubelet would
            if not each.is_running():
                each.wait()
                each.start()
        return artifact.is_ready()

    fleet.until(is_ready, "Ready")
    assert sorted(fleet.ended) == [("node-a", Reason.PUBLISHED), ("node-b", Reason.PUBLISHED)]
