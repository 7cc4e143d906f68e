"""Nodes, agents and a Job controller for an operator under load: an API server cannot tell.

    WeightNode.spec ──watch──► agent ──► WeightNode.status   at once when its content changes,
                                                             else at each heartbeat
    Job ──watch──► pod made, ended with a termination message; Job complete
    Job deleted ──► its pod deleted

Each agent publishes only what its spec names a Job for, as a real one does.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import aiohttp

from weightlease.names import LABEL_MANAGED_BY, LABEL_NODE, MANAGED_BY_OPERATOR
from weightlease.reasons import Reason, TerminationMessage, encode_termination

Object = dict[str, Any]
ROOT = "/apis/weightlease.io/v1alpha1"
BYTES = 1_000_000_000
JOB_SECONDS = 1.0
HEARTBEAT_SECONDS = 15.0
_AT_ONCE = 32


class Api:
    """JSON calls to one API server, so many at once."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def call(self, method: str, path: str, body: Object | None = None) -> Object:
        """Raises aiohttp.ClientResponseError for an answer that is no success."""
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Content-Type": content}
        async with (
            self._turns,
            self._session.request(method, path, json=body, headers=headers) as answer,
        ):
            if answer.status >= 400:
                text = await answer.text()
                raise RuntimeError(f"{method} {path}: {answer.status} {text[:500]}")
            found: Object = await answer.json()
            return found

    async def watch(self, path: str, selector: str = "") -> AsyncIterator[Object]:
        """Events from the beginning of the collection on."""
        query = {"watch": "true", "labelSelector": selector, "timeoutSeconds": "7200"}
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.get(path, params=query, timeout=timeout) as answer:
            buffer = b""
            async for chunk in answer.content.iter_any():
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)


@dataclass
class _Node:
    entries: dict[str, Object] = field(default_factory=dict)
    generation: int = 0
    store: dict[str, Object] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    told: asyncio.Event = field(default_factory=asyncio.Event)
    read: asyncio.Event = field(default_factory=asyncio.Event)

    async def entry_for(self, job: str) -> Object:
        """The spec's entry: it is written before its Job, and may be seen later."""
        while (found := self.entries.get(job)) is None:
            self.read.clear()
            await self.read.wait()
        return found


class SimulatedCluster:
    """Runs until cancelled; `finished` counts Jobs by the node and shard that they were for."""

    def __init__(self, api: Api, names: Iterable[str]) -> None:
        self._api = api
        self._nodes = {name: _Node() for name in names}
        self.finished: dict[tuple[str, str], int] = {}

    async def add_nodes(self) -> None:
        """Ready Nodes without taints."""
        await _all(self._add_node, self._nodes)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_specs())
            group.create_task(self._follow_jobs(group))
            for name, node in self._nodes.items():
                group.create_task(self._agent(name, node))

    async def _add_node(self, name: str) -> None:
        await self._api.call("POST", "/api/v1/nodes", {"metadata": {"name": name}})
        await self._api.call("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
        ready = {"type": "Ready", "status": "True", "reason": "Ready", "message": ""}
        moments = {"lastHeartbeatTime": _now(), "lastTransitionTime": _now()}
        body = {"status": {"conditions": [ready | moments]}}
        await self._api.call("PATCH", f"/api/v1/nodes/{name}/status", body)

    # ---- agents ----

    async def _follow_specs(self) -> None:
        async for event in self._api.watch(f"{ROOT}/weightnodes"):
            metadata = event["object"]["metadata"]
            node = self._nodes.get(metadata["name"])
            if node is None or metadata["generation"] == node.generation:
                continue
            node.generation = metadata["generation"]
            artifacts = (event["object"].get("spec") or {}).get("artifacts") or ()
            node.entries = {entry["job"]: entry for entry in artifacts if entry.get("job")}
            node.read.set()
            node.changed.set()

    async def _agent(self, name: str, node: _Node) -> None:
        await node.changed.wait()
        while True:
            node.changed.clear()
            told, node.told = node.told, asyncio.Event()
            status = {
                "observedGeneration": node.generation,
                "agentVersion": "0",
                "reportedAt": _now(),
                "inventory": list(node.store.values()),
            }
            await self._api.call("PATCH", f"{ROOT}/weightnodes/{name}/status", {"status": status})
            told.set()
            pause = HEARTBEAT_SECONDS * random.uniform(1.0, 1.3)  # noqa: S311 - spreads agents
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await node.changed.wait()

    # ---- Jobs ----

    async def _follow_jobs(self, group: asyncio.TaskGroup) -> None:
        selector = f"{LABEL_MANAGED_BY}={MANAGED_BY_OPERATOR}"
        seen: set[str] = set()
        async for event in self._api.watch("/apis/batch/v1/jobs", selector):
            job = event["object"]
            uid = job["metadata"]["uid"]
            if event["type"] == "DELETED":
                seen.discard(uid)
                group.create_task(self._delete_pod(job))
            elif uid not in seen:
                seen.add(uid)
                group.create_task(self._finish(job))

    async def _finish(self, job: Object) -> None:
        """The Job's pod publishes on its node."""
        await asyncio.sleep(JOB_SECONDS)
        metadata = job["metadata"]
        node = self._nodes[metadata["annotations"][LABEL_NODE]]
        entry = await node.entry_for(metadata["name"])
        key = _digest(metadata["namespace"], entry["name"])
        manifest = _digest(key)
        node.store[key] = {
            "namespace": metadata["namespace"],
            "storageClass": "disk",
            "key": key,
            "manifestSha256": manifest,
            "state": "Ready",
            "bytes": BYTES,
            "bytesDone": BYTES,
            "wantedId": entry["id"],
        }
        told = node.told
        node.changed.set()
        await told.wait()
        said = TerminationMessage(
            Reason.PUBLISHED, "published", retryable=False, key=key, manifest_sha256=manifest
        )
        with suppress(RuntimeError):  # its Job was deleted meanwhile
            await self._end_pod(job, encode_termination(said))
            await self._complete(job)
        shard = metadata["annotations"][LABEL_NODE], entry["id"]
        self.finished[shard] = self.finished.get(shard, 0) + 1

    async def _end_pod(self, job: Object, message: str) -> None:
        metadata, template = job["metadata"], job["spec"]["template"]
        pods = f"/api/v1/namespaces/{metadata['namespace']}/pods"
        name = f"{metadata['name']}-00000"
        labels = template["metadata"]["labels"]
        pod = {"metadata": {"name": name, "labels": labels}, "spec": template["spec"]}
        await self._api.call("POST", pods, pod)
        (container,) = template["spec"]["containers"]
        ended = {"exitCode": 0, "reason": "Completed", "message": message}
        state = {"terminated": ended | {"startedAt": _now(), "finishedAt": _now()}}
        said = {"name": container["name"], "image": container["image"], "imageID": ""}
        said |= {"ready": False, "restartCount": 0, "state": state}
        status = {"phase": "Succeeded", "containerStatuses": [said]}
        await self._api.call("PATCH", f"{pods}/{name}/status", {"status": status})

    async def _complete(self, job: Object) -> None:
        metadata, moment = job["metadata"], _now()
        conditions = [
            {"type": kind, "status": "True", "lastProbeTime": moment, "lastTransitionTime": moment}
            for kind in ("SuccessCriteriaMet", "Complete")
        ]
        status = {
            "startTime": metadata["creationTimestamp"],
            "completionTime": moment,
            "succeeded": 1,
            "conditions": conditions,
        }
        path = f"/apis/batch/v1/namespaces/{metadata['namespace']}/jobs/{metadata['name']}/status"
        await self._api.call("PATCH", path, {"status": status})

    async def _delete_pod(self, job: Object) -> None:
        metadata = job["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}-00000"
        with suppress(RuntimeError):  # it was deleted before it had one
            await self._api.call("DELETE", path, {"gracePeriodSeconds": 0})


async def _all(work: Callable[[str], Awaitable[None]], names: Iterable[str]) -> None:
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(_one(work, name))


async def _one(work: Callable[[str], Awaitable[None]], name: str) -> None:
    await work(name)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
