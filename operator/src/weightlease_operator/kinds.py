"""The kinds of object that the operator watches, and where the API server keeps them."""

from __future__ import annotations

from dataclasses import dataclass

from weightlease.names import GROUP, VERSION
from weightlease_operator.labels import SELECTOR


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource of the API; an empty group is the core's."""

    group: str
    version: str
    plural: str
    selector: str = ""

    @property
    def path(self) -> str:
        root = f"/apis/{self.group}" if self.group else "/api"
        return f"{root}/{self.version}"

    def collection(self, namespace: str = "") -> str:
        """The path of a list: of one namespace, or of the whole cluster."""
        inside = f"/namespaces/{namespace}" if namespace else ""
        return f"{self.path}{inside}/{self.plural}"

    def object(self, namespace: str, name: str) -> str:
        return f"{self.collection(namespace)}/{name}"


ARTIFACTS = Kind(GROUP, VERSION, "weightartifacts")
PRODUCERS = Kind(GROUP, VERSION, "weightproducers")
AGENTS = Kind(GROUP, VERSION, "weightnodes")
NODES = Kind("", "v1", "nodes")
JOBS = Kind("batch", "v1", "jobs", SELECTOR)
PODS = Kind("", "v1", "pods", SELECTOR)
WATCHED = (ARTIFACTS, PRODUCERS, AGENTS, NODES, JOBS, PODS)

NAMESPACES = Kind("", "v1", "namespaces")
CLAIMS = Kind("", "v1", "persistentvolumeclaims")
# the same events; only here can they be asked for by the object that they are about
POD_EVENTS = Kind("", "v1", "events")
EVENTS = Kind("events.k8s.io", "v1", "events")
LEASES = Kind("coordination.k8s.io", "v1", "leases")
