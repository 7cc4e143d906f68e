"""The dev cluster as a typed object: starts it, loads images, enters nodes, installs the chart."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weightlease_demo.kubectl import Kubectl

REPOSITORY = Path(__file__).resolve().parents[3]
NAMESPACE = "weightlease-system"
RELEASE = "weightlease"
_IMAGE_VALUES = {
    "operator": "operator",
    "node-agent": "nodeAgent",
    "csi-driver": "csiDriver",
    "producer": "producer",
}


class ClusterError(RuntimeError):
    """A step of the set-up that failed; the text holds the end of its output."""


@dataclass(frozen=True)
class DevCluster:
    """`python -m devcluster` of this repository, and the cluster it runs."""

    environment: Mapping[str, str]

    @classmethod
    def of_repository(cls) -> DevCluster:
        """The cluster that this repository's environment variables describe."""
        source = str(REPOSITORY / "hack" / "devcluster" / "src")
        return cls({**os.environ, "PYTHONPATH": source})

    def up(self, nodes: int) -> None:
        """Build what is missing and start the cluster; what runs already is kept."""
        self.run("up", "--nodes", str(nodes), seconds=1800)

    def down(self) -> None:
        """Remove the cluster, also what a crash left of it."""
        self.run("down", seconds=180)

    def images(self) -> dict[str, str]:
        """Build and load the project's images; name → reference."""
        output = self.run("images", seconds=1200)
        return {name: reference for name, (reference, _archive) in json.loads(output).items()}

    def collect(self, folder: Path) -> None:
        """Save logs, events and objects for whoever looks at a failure."""
        self.run("collect", str(folder), seconds=180)

    def on_node(self, node: str, *command: str, seconds: float = 60) -> str:
        """Run a program in a node's mount namespace."""
        return self.run("node", "exec", node, "--", *command, seconds=seconds)

    def add_node(self) -> str:
        """Start one more node and return its name."""
        return self.run("node", "add", seconds=180).strip()

    def restart_api(self) -> None:
        """Kill the API server and start it again."""
        self.run("restart-api", seconds=120)

    def remove_node(self, name: str) -> None:
        """End a node as a power cut would, and forget it."""
        self.run("node", "remove", name, seconds=180)

    def kubectl(self) -> Kubectl:
        """Kubectl with the cluster's own version and credentials."""
        return Kubectl(self.tools_environment())

    def tools_environment(self) -> dict[str, str]:
        """The environment in which kubectl and helm reach the cluster."""
        exports = [shlex.split(line)[1] for line in self.run("env").splitlines()]
        values = dict(export.split("=", 1) for export in exports)
        path = values.pop("PATH").replace("$PATH", os.environ["PATH"])
        return {**os.environ, **values, "PATH": path}

    def run(self, *arguments: str, seconds: float = 60) -> str:
        """One devcluster command; its progress goes to our stderr, its output is returned.

        Raises:
            ClusterError: a non-zero exit.

        """
        command = [sys.executable, "-m", "devcluster", *arguments]
        done = subprocess.run(
            command,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            timeout=seconds,
            check=False,
        )
        if done.returncode:
            raise ClusterError(f"devcluster {' '.join(arguments)} ended with {done.returncode}")
        return done.stdout


def install_chart(
    cluster: DevCluster, images: Mapping[str, str], values: Mapping[str, Any] | None = None
) -> None:
    """`helm upgrade --install` with local images, and wait until everything runs.

    Raises:
        ClusterError: what helm said.

    """
    settings: dict[str, Any] = {"images": {}, **(values or {})}
    for image, value in _IMAGE_VALUES.items():
        repository, _, tag = images[image].rpartition(":")
        settings["images"][value] = {"repository": repository, "tag": tag, "pullPolicy": "Never"}
    _end_interrupted_release(cluster)
    _helm(
        cluster,
        "upgrade", "--install", RELEASE, str(REPOSITORY / "charts" / "weightlease"),
        "--namespace", NAMESPACE, "--create-namespace", "--values", "-",
        # A test host's disk may be nearly full, as the development cluster's kubelets know.
        "--set", "agent.capacity.disk.minFreePercent=1",
        "--wait", "--timeout", "180s",
        stdin=json.dumps(settings),
    )  # fmt: skip


def _end_interrupted_release(cluster: DevCluster) -> None:
    """A helm that was killed or refused leaves a release that no upgrade takes; take it away."""
    unsettled = ("--pending", "--uninstalling")
    found = json.loads(_helm(cluster, "list", *unsettled, "-n", NAMESPACE, "-o", "json"))
    if any(release["name"] == RELEASE for release in found):
        _helm(cluster, "uninstall", RELEASE, "-n", NAMESPACE, "--wait")


def _helm(cluster: DevCluster, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        ["helm", *arguments],
        env=cluster.tools_environment(),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    if done.returncode:
        raise ClusterError(f"helm {arguments[0]}: {done.stderr.strip()}")
    return done.stdout
