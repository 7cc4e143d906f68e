"""The stage of the end-to-end tests: one cluster with the chart, and a local Hub."""

from __future__ import annotations

from dataclasses import dataclass

from weightlease_demo.cluster import DevCluster
from weightlease_demo.hub import Hub
from weightlease_demo.kubectl import Kubectl

HUB_TOKEN = "e2e-token"


@dataclass(frozen=True)
class Stage:
    """What every scenario stands on."""

    cluster: DevCluster
    kubectl: Kubectl
    images: dict[str, str]
    hub: Hub
    nodes: tuple[str, ...]

    @property
    def producer_image(self) -> str:
        """Image of Jobs, also used by consumers."""
        return self.images["producer"]
