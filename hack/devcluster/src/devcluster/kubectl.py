"""kubectl against one cluster, and the few questions this tool asks with it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devcluster import commands
from devcluster.errors import DevclusterError


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Where the program and the kubeconfig are."""

    program: Path
    kubeconfig: Path

    def run(self, *arguments: str, deadline: float = 30.0, stdin: str | None = None) -> str:
        """Standard output. Raises as ``commands.run`` does."""
        flags = [f"--kubeconfig={self.kubeconfig}", f"--request-timeout={deadline:.0f}s"]
        return commands.run([self.program, *flags, *arguments], deadline=deadline + 5, stdin=stdin)

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        """``kubectl get`` of a list."""
        found = json.loads(self.run("get", *arguments, "-o", "json"))
        return list(found["items"])

    def is_ready(self) -> bool:
        """Whether the API server answers and says that it is ready."""
        try:
            return self.run("get", "--raw", "/readyz", deadline=5).strip() == "ok"
        except DevclusterError:
            return False

    def ready_nodes(self) -> set[str]:
        """Names of nodes whose condition Ready is True; empty while nobody answers."""
        try:
            nodes = self.items("nodes")
        except DevclusterError:
            return set()
        return {node["metadata"]["name"] for node in nodes if node_is_ready(node)}

    def has_default_service_account(self) -> bool:
        """Before it exists no pod can be created."""
        try:
            self.run("get", "serviceaccount", "default", "-n", "default", deadline=5)
        except DevclusterError:
            return False
        return True


def node_is_ready(node: dict[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
