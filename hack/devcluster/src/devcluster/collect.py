"""Copies what explains a failure into a folder: logs of every process and pod, all objects.

::

    <folder>/
      components/<component>.log      processes/<node>-<program>.log
      pods/<node>/<namespace>_<pod>_<uid>/<container>/<n>.log
      objects/<kind>.json             nodes.txt  pods.txt  events.txt
"""

import json
import shutil
from itertools import groupby
from pathlib import Path
from typing import Any

from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.kubectl import Kubectl
from devcluster.progress import say, step
from devcluster.settings import Settings

_LISTED = {
    "nodes.txt": ("describe", "nodes"),
    "pods.txt": ("describe", "pods", "--all-namespaces"),
    "events.txt": ("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"),
}
# Secrets stay out: what is collected ends up as a build's artifact.
_LEFT_OUT = frozenset({"secrets"})


def collect(settings: Settings, folder: Path) -> None:
    """Collects all it can; what fails is noted in ``<folder>/errors.txt`` and skipped."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Cluster.of(settings)
    with step(f"collecting logs into {folder}"):
        kubectl = cluster.kubectl
        if settings.existing_kubeconfig is not None:
            kubectl = Kubectl(kubectl.program, settings.existing_kubeconfig)
        else:
            _copy_logs(cluster, folder)
        _dump_objects(kubectl, folder)


def _copy_logs(cluster: Cluster, folder: Path) -> None:
    layout = cluster.layout
    for log in layout.logs.glob("*.log"):
        _copy(log, folder / "components" / log.name)
    for root in layout.nodes.glob("*"):
        for log in root.glob("*.log"):
            _copy(log, folder / "processes" / f"{root.name}-{log.name}")
        pods = layout.node(root.name, 0).behind("/var/log/pods")
        for log in pods.rglob("*.log*"):
            _copy(log, folder / "pods" / root.name / log.relative_to(pods))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copyfile(source, target)
    except FileNotFoundError:
        return  # rotated or removed meanwhile


def _dump_objects(kubectl: Kubectl, folder: Path) -> None:
    if not kubectl.is_ready():
        _note(folder, "the API server does not answer: no objects were collected")
        return
    for name, arguments in _LISTED.items():
        _write(kubectl, folder, name, *arguments)
    try:
        listable = kubectl.run("api-resources", "--verbs=list", "--output=name").split()
        resources = ",".join(sorted(set(listable) - _LEFT_OUT))
        # One call: each call pays for discovery anew.
        found = kubectl.items(resources, "--all-namespaces")
    except DevclusterError as error:
        _note(folder, str(error))
        return
    (folder / "objects").mkdir(exist_ok=True)
    for kind, items in groupby(sorted(found, key=_kind), key=_kind):
        (folder / "objects" / f"{kind}.json").write_text(json.dumps(list(items), indent=1))


def _kind(item: dict[str, Any]) -> str:
    return str(item["kind"])


def _write(kubectl: Kubectl, folder: Path, name: str, *arguments: str) -> None:
    try:
        text = kubectl.run(*arguments)
    except DevclusterError as error:
        _note(folder, str(error))
        return
    if text:
        (folder / name).write_text(text)


def _note(folder: Path, text: str) -> None:
    say(text.splitlines()[0])
    with (folder / "errors.txt").open("a") as file:
        file.write(text + "\n")
