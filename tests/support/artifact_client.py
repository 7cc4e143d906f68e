"""WeightArtifacts on a real API server, as a test creates, reads and compares them."""

from __future__ import annotations

from typing import Any

from apiserver import ApiServer, HttpError
from simulated_fleet import ROOT, digest
from weightlease.api.weight_artifact import WeightArtifact
from weightlease.reasons import Reason

REVISION = "0" * 40
KEY = digest(REVISION, "model")


class Artifact:
    """One WeightArtifact of the test's namespace."""

    def __init__(self, server: ApiServer, namespace: str, name: str = "model") -> None:
        self._server, self.namespace, self.name = server, namespace, name
        self.path = f"{ROOT}/namespaces/{namespace}/weightartifacts/{name}"

    def create(self, **spec: Any) -> None:
        source = {"huggingFace": {"repo": "org/model", "revision": REVISION}}
        body = {
            "apiVersion": "weightlease.io/v1alpha1",
            "kind": "WeightArtifact",
            "metadata": {"name": self.name},
            "spec": {"source": source} | spec,
        }
        self._server.create(self.path.rpartition("/")[0], body)

    def annotate(self, name: str, value: str) -> None:
        self._server.patch(self.path, {"metadata": {"annotations": {name: value}}})

    def delete(self) -> None:
        self._server.delete(self.path)

    def is_gone(self) -> bool:
        return is_gone(self._server, self.path)

    def read(self) -> WeightArtifact:
        return WeightArtifact.parse(self._server.get(self.path))

    def is_ready(self) -> bool:
        return self.reason("Ready") == ("True", Reason.ALL_NODES_READY)

    def reason(self, kind: str) -> tuple[str, str] | None:
        """Status and reason of a condition of the current generation."""
        artifact = self.read()
        for condition in artifact.status.conditions:
            current = condition.observed_generation == artifact.metadata.generation
            if condition.type == kind and current:
                return condition.status.value, condition.reason
        return None


def is_gone(server: ApiServer, path: str) -> bool:
    try:
        server.get(path)
    except HttpError as error:
        return error.status == 404
    return False


def entries(server: ApiServer, node: str) -> list[dict[str, Any]]:
    spec = server.get(f"{ROOT}/weightnodes/{node}").get("spec") or {}
    found: list[dict[str, Any]] = spec.get("artifacts") or []
    return found


def jobs(server: ApiServer, namespace: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.get(f"/apis/batch/v1/namespaces/{namespace}/jobs")["items"]
    return found
