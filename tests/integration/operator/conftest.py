"""One API server per test module with our definitions, a fleet of two nodes and an operator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import apiserver
import helm
from apiserver import ApiServer
from artifact_client import Artifact
from simulated_fleet import ROOT, OperatorProcess, SimulatedFleet, operator_running

SYSTEM, ACCOUNT = "weightlease-system", "weightlease-operator"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with apiserver.running(tmp_path_factory.mktemp("apiserver"), controllers=True) as running:
        running.install_crds()
        yield running


@pytest.fixture
def namespace(server: ApiServer, request: pytest.FixtureRequest) -> str:
    body = {"metadata": {"generateName": "test-"}}
    name: str = server.create("/api/v1/namespaces", body)["metadata"]["name"]
    return name


@pytest.fixture(scope="module")
def producer(server: ApiServer) -> None:
    """The WeightProducer that artifacts use when they name none."""
    abi = {
        "id": "snapshot",
        "version": "1",
        "implementationFingerprint": "snapshot-1",
        "manifestSchema": "1",
        "restorerSchema": "1",
    }
    spec = {
        "image": "example/producer:1",
        "producer": abi,
        "sources": ["huggingFace", "persistentVolumeClaim"],
        "representations": ["canonical"],
    }
    body = {
        "apiVersion": "weightlease.io/v1alpha1",
        "kind": "WeightProducer",
        "metadata": {"name": "snapshot"},
        "spec": spec,
    }
    server.create(f"{ROOT}/weightproducers", body)


@pytest.fixture(scope="module")
def kubeconfig(server: ApiServer, producer: None) -> Path:
    """The operator's service account, with the rights that the chart gives it and no others."""
    server.create("/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
    objects = helm.render(namespace=SYSTEM)
    server.create(
        f"/api/v1/namespaces/{SYSTEM}/serviceaccounts",
        helm.one(objects, "ServiceAccount", ACCOUNT),
    )
    for kind in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"):
        item = helm.one(objects, kind, ACCOUNT)
        inside = f"/namespaces/{SYSTEM}" if "namespace" in item["metadata"] else ""
        path = f"/apis/rbac.authorization.k8s.io/v1{inside}/{kind.lower()}s"
        server.create(path, item)
    return server.kubeconfig_of(SYSTEM, ACCOUNT)


@pytest.fixture
def fleet(server: ApiServer) -> Iterator[SimulatedFleet]:
    simulated = SimulatedFleet(server)
    for name in ("node-a", "node-b"):
        simulated.add_node(name)
    yield simulated
    for name in list(simulated.stores):
        simulated.remove_node(name)


@pytest.fixture
def operator_settings() -> dict[str, str]:
    """A module overrides this to run its operators with other settings."""
    return {}


@pytest.fixture
def operator(
    server: ApiServer,
    kubeconfig: Path,
    fleet: SimulatedFleet,
    namespace: str,
    tmp_path: Path,
    operator_settings: dict[str, str],
) -> Iterator[OperatorProcess]:
    """Started, and stopped after its artifacts are gone, so that tests leave nothing behind."""
    log = tmp_path / "operator.log"
    with operator_running(kubeconfig, log, **operator_settings) as process:
        yield process
        fleet.calm()
        path = f"{ROOT}/namespaces/{namespace}/weightartifacts"
        server.delete(path)
        fleet.until(lambda: not server.get(path)["items"], "no artifact is left")


@pytest.fixture
def artifact(server: ApiServer, namespace: str) -> Artifact:
    return Artifact(server, namespace)
