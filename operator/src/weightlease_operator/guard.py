"""`python -m weightlease_operator.guard`: whether the CSI driver may go; the chart asks before.

A pod that is deleted after its volume's driver hangs in Terminating, because nobody unmounts.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from prometheus_client import CollectorRegistry

from weightlease.names import CSI_DRIVER
from weightlease_operator.api_errors import ApiError
from weightlease_operator.gateway import connect
from weightlease_operator.kinds import Kind
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


def refusal(names: list[str]) -> str:
    """Why the driver may not go; empty when nothing is in the way."""
    if not names:
        return ""
    shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    return (
        f"pods have volumes of {CSI_DRIVER} and would hang in Terminating without its driver: "
        f"{shown} ({len(names)} in all); delete them and the WeightArtifacts first, or uninstall "
        "with --no-hooks"
    )


async def find() -> list[str]:
    """`namespace/name` of the cluster's pods that hold volumes, sorted.

    Raises:
        ApiError: the API server can't be asked.

    """
    async with connect(_DEADLINE_SECONDS, Metrics(CollectorRegistry())) as gateway:
        found = [
            f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            async for pod in gateway.each(ALL_PODS)
            if has_volume(pod)
        ]
    return sorted(found)


def main() -> int:
    """Exit codes: 0 when the driver may go, 1 when it may not, 2 when nobody could tell."""
    try:
        why = refusal(asyncio.run(find()))
    except ApiError as error:
        sys.stderr.write(f"pods can't be listed: {error}\n")
        return 2
    sys.stderr.write(why)
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
