"""Every kopf handler, in one place: watch events go to the intake, and nothing else happens here.

Only on.event handlers: kopf then writes nothing to the objects, neither finalizers nor annotations.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Coroutine
from typing import Any

import kopf

from weightlease_operator.intake import Intake
from weightlease_operator.kinds import AGENTS, ARTIFACTS, JOBS, NODES, PODS, PRODUCERS, Kind


def register(registry: kopf.OperatorRegistry, intake: Intake) -> None:
    """Attach the handlers to a registry."""

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        found = kopf.login_with_service_account(**kwargs)
        if found is None:
            return kopf.login_with_kubeconfig(**kwargs)
        # kopf asks the cluster's DNS for the API server; its address is known without.
        host, port = (os.environ[f"KUBERNETES_SERVICE_{part}"] for part in ("HOST", "PORT"))
        address = f"[{host}]" if ":" in host else host
        return dataclasses.replace(found, server=f"https://{address}:{port}")

    for kind in (ARTIFACTS, PRODUCERS, AGENTS, NODES, JOBS, PODS):
        attach = kopf.on.event(
            kind.group, kind.version, kind.plural, registry=registry, id=kind.plural
        )
        attach(_forwarder(intake, kind))


class NoDiffBase(kopf.DiffBaseStorage):
    """Keeps no last state: without handlers of changes, copying each object is for nothing."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence({})

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


class NoProgress(kopf.ProgressStorage):
    """Keeps no progress: a handler that only forwards has none."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence


def _forwarder(intake: Intake, kind: Kind) -> Callable[..., Coroutine[Any, Any, None]]:
    async def forward(event: kopf.RawEvent, **_: Any) -> None:
        intake.event(kind, deleted=event["type"] == "DELETED", raw=event["object"])

    return forward
