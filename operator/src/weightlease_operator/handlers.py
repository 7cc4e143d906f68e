"""Every kopf handler, in one place: watch events go to the intake, and nothing else happens here.

Only on.event handlers: kopf then writes nothing to the objects, neither finalizers nor annotations.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import kopf

from weightlease_operator.intake import Intake
from weightlease_operator.kinds import AGENTS, ARTIFACTS, JOBS, NODES, PODS, PRODUCERS, Kind


def register(registry: kopf.OperatorRegistry, intake: Intake) -> None:
    """Attach the handlers to a registry."""

    def take(kind: Kind, event: kopf.RawEvent) -> None:
        intake.event(kind, deleted=event["type"] == "DELETED", raw=event["object"])

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        found = kopf.login_with_service_account(**kwargs)
        if found is None:
            return kopf.login_with_kubeconfig(**kwargs)
        # kopf asks the cluster's DNS for the API server; its address is known without.
        host, port = (os.environ[f"KUBERNETES_SERVICE_{part}"] for part in ("HOST", "PORT"))
        address = f"[{host}]" if ":" in host else host
        return dataclasses.replace(found, server=f"https://{address}:{port}")

    @kopf.on.event(ARTIFACTS.group, ARTIFACTS.version, ARTIFACTS.plural, registry=registry)
    async def artifact(event: kopf.RawEvent, **_: Any) -> None:
        take(ARTIFACTS, event)

    @kopf.on.event(PRODUCERS.group, PRODUCERS.version, PRODUCERS.plural, registry=registry)
    async def producer(event: kopf.RawEvent, **_: Any) -> None:
        take(PRODUCERS, event)

    @kopf.on.event(AGENTS.group, AGENTS.version, AGENTS.plural, registry=registry)
    async def agent(event: kopf.RawEvent, **_: Any) -> None:
        take(AGENTS, event)

    @kopf.on.event(NODES.group, NODES.version, NODES.plural, registry=registry)
    async def node(event: kopf.RawEvent, **_: Any) -> None:
        take(NODES, event)

    @kopf.on.event(JOBS.group, JOBS.version, JOBS.plural, registry=registry)
    async def job(event: kopf.RawEvent, **_: Any) -> None:
        take(JOBS, event)

    @kopf.on.event(PODS.group, PODS.version, PODS.plural, registry=registry)
    async def pod(event: kopf.RawEvent, **_: Any) -> None:
        take(PODS, event)
