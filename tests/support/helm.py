"""Helm as a renderer of this repository's chart."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from devcluster.binaries import bin_folder
from devcluster.settings import Settings

CHART = Path(__file__).resolve().parents[2] / "charts" / "weightlease"

Object = dict[str, Any]


class HelmFailed(Exception):
    """Helm refused; the text is what it printed."""


def find_helm() -> str:
    """The `helm` on PATH, else the one that `devcluster build` made.

    Raises:
        RuntimeError: neither is there.

    """
    built = bin_folder(Settings.from_environment(os.environ).cache)
    found = shutil.which("helm") or shutil.which("helm", path=str(built))
    if found is None:
        raise RuntimeError(
            f"no helm on PATH or in {built}: run `python -m devcluster build` or install Helm 4"
        )
    return found


def helm(*arguments: str, values: Mapping[str, Any] | None = None) -> str:
    """Run Helm, with `values` as a values file; returns what it printed on stdout.

    Raises:
        HelmFailed: it exited with another code than 0.

    """
    command = [find_helm(), *arguments]
    if values is not None:
        command += ["--values", "-"]
    finished = subprocess.run(
        command,
        input=None if values is None else json.dumps(values),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if finished.returncode != 0:
        raise HelmFailed(finished.stderr)
    return finished.stdout


def render(
    values: Mapping[str, Any] | None = None,
    *,
    release: str = "weightlease",
    namespace: str = "weightlease-system",
    api_versions: Sequence[str] = (),
) -> list[Object]:
    """Every object of the chart, hooks included, custom resource definitions left out.

    Raises:
        HelmFailed: the values break the schema, or a template refused them.

    """
    flags = [flag for version in api_versions for flag in ("--api-versions", version)]
    text = helm(
        "template", release, str(CHART), "--namespace", namespace, *flags, values=values or {}
    )
    return [document for document in yaml.safe_load_all(text) if document]


def pod_templates(objects: Sequence[Object]) -> Iterator[tuple[str, Object]]:
    """Yields the kind and the pod template of each workload."""
    for item in objects:
        if "template" in item.get("spec", {}):
            yield item["kind"], item["spec"]["template"]


def containers(template: Object) -> list[Object]:
    """The containers of a pod template, init containers first."""
    spec = template["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def one(objects: Sequence[Object], kind: str, name: str = "") -> Object:
    """The only object of that kind, or of that kind and name."""
    found = [
        item for item in objects if item["kind"] == kind and name in ("", item["metadata"]["name"])
    ]
    assert len(found) == 1, f"{len(found)} objects are {kind} {name}"
    return found[0]


def workload(objects: Sequence[Object], component: str) -> Object:
    """The only DaemonSet or Deployment of a component: agent, operator, csi-driver."""
    found = [
        item
        for item in objects
        if item["kind"] in ("DaemonSet", "Deployment")
        and item["metadata"]["labels"]["app.kubernetes.io/component"] == component
    ]
    assert len(found) == 1, f"{len(found)} workloads are {component}"
    return found[0]
