"""Agents, kubelets and an operator process around a real API server, for tests of the operator.

Agents and kubelets act only when a test pumps them, so a test decides what happens when. An agent
publishes only for a Job that its WeightNode's spec names, and cleans what no entry names.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from apiserver import ApiServer, HttpError
from mortal import MORTAL
from weightlease.reasons import EXIT_STATUS, Reason, TerminationMessage, encode_termination

Object = dict[str, Any]
ROOT = "/apis/weightlease.io/v1alpha1"
SIZE = 90_900_000
DEADLINE_SECONDS = 60
_SELECTOR = "labelSelector=app.kubernetes.io/managed-by%3Dweightlease-operator"


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class SimulatedFleet:
    """`fail` names a reason per node with which its next pods end; `hold` keeps pods running."""

    server: ApiServer
    stores: dict[str, dict[str, Object]] = field(default_factory=dict)
    leases: dict[str, list[str]] = field(default_factory=dict)
    fail: dict[str, Reason] = field(default_factory=dict)
    hold: bool = False
    silent: set[str] = field(default_factory=set)
    ended: list[tuple[str, str]] = field(default_factory=list)
    _reported: dict[str, tuple[str, float]] = field(default_factory=dict)

    # ---- the cluster ----

    def add_node(self, name: str, **labels: str) -> None:
        metadata = {"name": name, "labels": labels}
        self.server.create("/api/v1/nodes", {"metadata": metadata})
        # the API server taints every new node until a node controller says that it is ready
        self.server.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        moments = {"lastHeartbeatTime": now(), "lastTransitionTime": now()}
        body = {"status": {"conditions": [ready | moments]}}
        self.server.patch(f"/api/v1/nodes/{name}/status", body)
        self.stores[name] = {}

    def remove_node(self, name: str) -> None:
        self.server.delete(f"/api/v1/nodes/{name}")
        del self.stores[name]

    def calm(self) -> None:
        """Nothing is held, leased, silent or failing any more."""
        self.hold = False
        for each in (self.leases, self.fail, self.silent):
            each.clear()

    def pump(self) -> None:
        """Every kubelet and agent does what it has to do now."""
        for pod in self.pods():
            if pod["status"].get("phase") != "Pending":
                continue
            if "deletionTimestamp" in pod["metadata"]:
                self._set_status(pod, {"phase": "Failed"})
            elif not self.hold:
                self._run(pod)
        for node in self.server.get(f"{ROOT}/weightnodes")["items"]:
            if node["metadata"]["name"] in self.stores:
                self._report(node)

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Pump until `condition` holds; returns its value."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            self.pump()
            value = condition()
            if value:
                return value
            if time.monotonic() > deadline:
                shown = self.server.kubectl("get", "wa,wn,jobs,pods,events", "-A", "-o", "wide")
                raise AssertionError(f"not within {DEADLINE_SECONDS} s: {what}\n{shown.stdout}")
            time.sleep(0.05)

    def pods(self) -> list[Object]:
        pods: list[Object] = self.server.get(f"/api/v1/pods?{_SELECTOR}")["items"]
        return pods

    # ---- a kubelet with a producer ----

    def bind(self, pod: Object) -> None:
        """The scheduler gives the pod the node that its Job asks for."""
        metadata = pod["metadata"]
        target = {"apiVersion": "v1", "kind": "Node", "name": _node_of(pod["spec"])}
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/binding"
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": metadata["name"]}}
        self.server.create(path, body | {"target": target})

    def waits(self, pod: Object, reason: str, message: str) -> None:
        """The pod's container does not start."""
        waiting = {"reason": reason, "message": message}
        self._set_status(pod, {"containerStatuses": [_container(pod, {"waiting": waiting})]})

    def killed(self, pod: Object, code: int, reason: str) -> None:
        """The pod's container was killed."""
        ended = {"exitCode": code, "reason": reason, "startedAt": now(), "finishedAt": now()}
        statuses = [_container(pod, {"terminated": ended})]
        self._set_status(pod, {"phase": "Failed", "containerStatuses": statuses})

    def evicted(self, pod: Object) -> None:
        """The kubelet evicted the pod: no container tells."""
        disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
        conditions = [disrupted | {"lastTransitionTime": now()}]
        self._set_status(pod, {"phase": "Failed", "reason": "Evicted", "conditions": conditions})

    def _run(self, pod: Object) -> None:
        metadata, spec = pod["metadata"], pod["spec"]
        node = _node_of(spec)
        if node not in self.stores:
            return
        environment = {each["name"]: each.get("value", "") for each in spec["containers"][0]["env"]}
        request = json.loads(environment["WEIGHTLEASE_PRODUCER_REQUEST"])
        job = metadata["labels"]["batch.kubernetes.io/job-name"]
        said = self._produce(node, request, metadata["namespace"], job)
        code = EXIT_STATUS[said.reason].code
        ended = {"exitCode": code, "message": encode_termination(said), "reason": "Completed"}
        state = {"terminated": ended | {"startedAt": now(), "finishedAt": now()}}
        phase = "Failed" if code else "Succeeded"
        if self._set_status(pod, {"phase": phase, "containerStatuses": [_container(pod, state)]}):
            self.ended.append((node, said.reason))

    def _set_status(self, pod: Object, status: Object) -> bool:
        """Whether the pod was still there; its Job may have been deleted meanwhile."""
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        try:
            self.server.patch(path, {"status": status})
        except HttpError:
            return False
        return True

    def _produce(self, node: str, request: Object, namespace: str, job: str) -> TerminationMessage:
        reason = self.fail.get(node)
        if reason is not None:
            retryable = EXIT_STATUS[reason].retryable
            return TerminationMessage(reason, f"{reason} on {node}", retryable)
        entry = self._entry_for(node, job)
        if entry is None:
            text = f"no entry of {node} names Job {job}"
            return TerminationMessage(Reason.AGENT_REFUSED, text, retryable=False)
        source = request["source"]
        key = digest(source.get("revision", source.get("path")), request["component"]["name"])
        manifest = digest("manifest", key)
        if request["expectedKey"] not in ("", key):
            return TerminationMessage(Reason.IDENTITY_MISMATCH, "another key", retryable=False)
        self.stores[node][key] = {
            "namespace": namespace,
            "storageClass": request["storageClass"],
            "key": key,
            "manifestSha256": manifest,
            "state": "Ready",
            "bytes": SIZE,
            "bytesDone": SIZE,
            "wantedId": entry["id"],
        }
        return TerminationMessage(Reason.PUBLISHED, "published", False, key, manifest, SIZE)

    def _entry_for(self, node: str, job: str) -> Object | None:
        try:
            spec = self.server.get(f"{ROOT}/weightnodes/{node}").get("spec") or {}
        except HttpError:  # not there yet, or no longer
            return None
        named = [entry for entry in spec.get("artifacts") or () if entry.get("job") == job]
        return named[0] if named else None

    # ---- an agent ----

    def _report(self, node: Object) -> None:
        name = node["metadata"]["name"]
        if name in self.silent:
            return
        entries = (node.get("spec") or {}).get("artifacts") or ()
        store = self.stores[name]
        for key, held in list(store.items()):
            if not _is_wanted(held, entries) and not self.leases.get(key):
                del store[key]
        inventory = [held | self._leases(key) for key, held in sorted(store.items())]
        status = {
            "observedGeneration": node["metadata"]["generation"],
            "agentVersion": "0",
            "inventory": inventory,
            "ready": f"{len(inventory)}/{len(entries)}",
        }
        text, at = json.dumps(status), time.monotonic()
        last, when = self._reported.get(name, ("", 0.0))
        if text == last and at - when < 5:
            return
        with contextlib.suppress(HttpError):  # the node is being collected
            path = f"{ROOT}/weightnodes/{name}/status"
            self.server.patch(path, {"status": status | {"reportedAt": now()}})
            self._reported[name] = (text, at)

    def _leases(self, key: str) -> Object:
        holders = self.leases.get(key, [])
        held = [{"holder": holder, "since": now()} for holder in holders]
        return {"leases": held, "leaseCount": len(holders)} if held else {}


def _is_wanted(held: Object, entries: Sequence[Object]) -> bool:
    """Named by its key, or made for an entry whose key the canary has not fixed yet."""
    return any(
        entry.get("key") == held["key"]
        or (not entry.get("key") and entry["id"] == held["wantedId"])
        for entry in entries
    )


def _container(pod: Object, state: Object) -> Object:
    (container,) = pod["spec"]["containers"]
    named = {"name": container["name"], "image": container["image"], "imageID": ""}
    return named | {"ready": False, "restartCount": 0, "state": state}


def _node_of(spec: Object) -> str:
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    name: str = required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
    return name


FAST = {
    "METRICS_PORT": "0",
    "BIND_ADDRESS": "127.0.0.1",
    "BATCH_SECONDS": "0.05",
    "PLAN__BACKOFF_BASE_SECONDS": "0.5",
    "REQUEUE_BASE_SECONDS": "0.2",
}


class OperatorProcess:
    """A real operator, in a process of its own."""

    def __init__(self, kubeconfig: Path, log: Path, settings: Mapping[str, str]) -> None:
        self._kubeconfig, self._settings = kubeconfig, settings
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if "KUBE" not in name}
        environment |= {"KUBECONFIG": str(self._kubeconfig)} | {
            f"WEIGHTLEASE_OPERATOR_{name}": value for name, value in self._settings.items()
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*MORTAL, sys.executable, "-m", "weightlease_operator"],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def stop(self, number: signal.Signals) -> int:
        """Send a signal and wait; returns the exit status."""
        self.send(number)
        return self.wait()

    def wait(self) -> int:
        """The exit status of a process that ends by itself."""
        code = 0 if self._process is None else self._process.wait(timeout=30)
        self._process = None
        return code

    def lines(self) -> list[Object]:
        """What it has logged."""
        found = []
        for line in self.log.read_text().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found


@contextlib.contextmanager
def operator_running(kubeconfig: Path, log: Path, **settings: str) -> Iterator[OperatorProcess]:
    process = OperatorProcess(kubeconfig, log, FAST | settings)
    process.start()
    try:
        yield process
    finally:
        process.stop(signal.SIGKILL)
