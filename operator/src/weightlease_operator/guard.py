"""`python -m weightlease_operator.guard`: whether the release may go; the chart asks before.

A pod that is deleted after its volume's driver hangs in Terminating, because nobody unmounts. A
WeightArtifact that is deleted after the operator hangs too, because nobody ends its finalizer.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from prometheus_client import CollectorRegistry

from weightlease.names import CSI_DRIVER
from weightlease_operator.api_errors import ApiError
from weightlease_operator.gateway import connect
from weightlease_operator.kinds import ARTIFACTS, Kind
from weightlease_operator.metrics import Metrics

ALL_PODS = Kind("", "v1", "pods")
_DEADLINE_SECONDS = 30.0
_SHOWN = 10
_ENDED = ("Succeeded", "Failed")


def has_volume(pod: dict[str, Any]) -> bool:
    """Whether a pod holds one of our volumes on a node."""
    spec = pod.get("spec", {})
    return (
        bool(spec.get("nodeName"))
        and pod.get("status", {}).get("phase") not in _ENDED
        and any(
            (volume.get("csi") or {}).get("driver") == CSI_DRIVER
            for volume in spec.get("volumes") or ()
        )
    )


def refusal(pods: list[str], artifacts: list[str]) -> str:
    """Why the release may not go; empty when nothing is in the way."""
    reasons = []
    if pods:
        reasons.append(
            f"pods have volumes of {CSI_DRIVER} and would hang in Terminating without its driver: "
            f"{_shown(pods)}"
        )
    if artifacts:
        reasons.append(
            f"WeightArtifacts could not be deleted without the operator: {_shown(artifacts)}"
        )
    if not reasons:
        return ""
    return "; ".join(reasons) + "; delete them first, or uninstall with --no-hooks"


def _shown(names: list[str]) -> str:
    return (
        f"{', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''} ({len(names)} in all)"
    )


async def find() -> tuple[list[str], list[str]]:
    """`namespace/name` of the cluster's pods that hold volumes, and of its WeightArtifacts; sorted.

    Raises:
        ApiError: the API server can't be asked.

    """
    async with connect(_DEADLINE_SECONDS, Metrics(CollectorRegistry())) as gateway:
        pods = [_name(pod) async for pod in gateway.each(ALL_PODS) if has_volume(pod)]
        artifacts = [_name(artifact) async for artifact in gateway.each(ARTIFACTS)]
    return sorted(pods), sorted(artifacts)


def _name(item: dict[str, Any]) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def main() -> int:
    """Exit codes: 0 when the release may go, 1 when it may not, 2 when nobody could tell."""
    try:
        why = refusal(*asyncio.run(find()))
    except ApiError as error:
        sys.stderr.write(f"pods and WeightArtifacts can't be listed: {error}\n")
        return 2
    sys.stderr.write(why)
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
