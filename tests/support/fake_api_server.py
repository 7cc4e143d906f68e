"""A Kubernetes API server as far as a node agent needs one, over real HTTP.

It knows one WeightNode, reviews tokens that the test has made, streams watch events and can go away
and come back. Schema, RBAC and admission are a real API server's and are tested there.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from aiohttp import web

NODES = "/apis/weightlease.io/v1alpha1/weightnodes"
ResultT = TypeVar("ResultT")


def token_for(name: str, seconds: float = 3600.0) -> str:
    """A JWT-shaped token that ends in `seconds`."""

    def part(content: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    return ".".join([part({"alg": "none"}), part({"exp": time.time() + seconds}), name])


class FakeApiServer:
    """Runs its own event loop in a thread; methods may be called from the test's."""

    def __init__(self, folder: Path, node: str = "node-1") -> None:
        self.node = node
        self.kubeconfig = folder / "kubeconfig"
        self.statuses: list[dict[str, Any]] = []
        self.reviews = 0
        self.list_seconds = 0.0
        self._users: dict[str, dict[str, Any]] = {}
        self._object: dict[str, Any] | None = None
        self._version = 1
        self._watchers: set[asyncio.Queue[dict[str, Any]]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runner: web.AppRunner | None = None
        self._port = 0

    # ---- what the test arranges ----

    def add_pod(
        self,
        pod: str,
        namespace: str = "team-a",
        *,
        node: str | None = None,
        audience: str = "weightlease.io",
        seconds: float = 3600.0,
        account: str = "default",
    ) -> str:
        """A token that is bound to a pod."""
        token = token_for(f"{namespace}-{pod}", seconds)
        prefix = "authentication.kubernetes.io/"
        self._users[token] = {
            "authenticated": True,
            "audiences": [audience],
            "user": {
                "username": f"system:serviceaccount:{namespace}:{account}",
                "extra": {
                    f"{prefix}pod-name": [pod],
                    f"{prefix}pod-uid": [f"uid-of-{pod}"],
                    f"{prefix}node-name": [self.node if node is None else node],
                },
            },
        }
        return token

    def set_spec(self, *artifacts: dict[str, Any]) -> None:
        """Replace the WeightNode's spec, making the object if there is none."""
        self._run(self._set_spec(list(artifacts)))

    def go_away(self) -> None:
        """Stop listening and break every connection."""
        self._run(self._stop())

    def come_back(self) -> None:
        self._run(self._start())

    def expire_watches(self) -> None:
        """End every watch as a compacted API server does."""
        gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
        self._loop.call_soon_threadsafe(self._tell, gone)

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._start())
        self.kubeconfig.write_text(json.dumps(self._config()))
        return self

    def __exit__(self, *raised: object) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    # ---- inside ----

    def _run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _start(self) -> None:
        application = web.Application()
        application.router.add_get(NODES, self._list)
        application.router.add_patch(NODES + "/{name}/status", self._patch)
        application.router.add_post("/apis/authentication.k8s.io/v1/tokenreviews", self._review)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        if self._runner is not None:
            for queue in self._watchers:
                queue.put_nowait({})
            await self._runner.cleanup()
            self._runner = None

    async def _set_spec(self, artifacts: list[dict[str, Any]]) -> None:
        self._version += 1
        kind = "MODIFIED" if self._object else "ADDED"
        generation = self._object["metadata"]["generation"] + 1 if self._object else 1
        self._object = {
            "apiVersion": "weightlease.io/v1alpha1",
            "kind": "WeightNode",
            "metadata": {
                "name": self.node,
                "generation": generation,
                "resourceVersion": str(self._version),
            },
            "spec": {"artifacts": artifacts},
        }
        self._tell({"type": kind, "object": self._object})

    def _tell(self, event: dict[str, Any]) -> None:
        for queue in self._watchers:
            queue.put_nowait(event)

    async def _list(self, request: web.Request) -> web.StreamResponse:
        assert request.query["fieldSelector"] == f"metadata.name={self.node}"
        if request.query.get("watch") in {"true", "True"}:
            return await self._watch(request)
        await asyncio.sleep(self.list_seconds)
        items = [self._object] if self._object else []
        metadata = {"resourceVersion": str(self._version)}
        return web.json_response({"kind": "WeightNodeList", "metadata": metadata, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            if self._object and int(request.query["resourceVersion"]) < self._version:
                queue.put_nowait({"type": "MODIFIED", "object": self._object})
            while event := await queue.get():
                await response.write(json.dumps(event).encode() + b"\n")
                if event["type"] == "ERROR":
                    break
        finally:
            self._watchers.discard(queue)
        return response

    async def _patch(self, request: web.Request) -> web.Response:
        if self._object is None or request.match_info["name"] != self.node:
            return web.json_response({"kind": "Status", "code": 404}, status=404)
        assert request.content_type == "application/json-patch+json"
        (operation,) = await request.json()
        assert (operation["op"], operation["path"]) == ("add", "/status")
        self.statuses.append(operation["value"])
        return web.json_response(self._object)

    async def _review(self, request: web.Request) -> web.Response:
        self.reviews += 1
        spec = (await request.json())["spec"]
        assert spec["audiences"] == ["weightlease.io"]
        status = self._users.get(spec["token"], {"authenticated": False, "error": "unknown token"})
        return web.json_response(
            {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenReview",
                "spec": spec,
                "status": status,
            },
            status=201,
        )

    def _config(self) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
            "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{self._port}"}}],
            "users": [{"name": "fake", "user": {"token": "agent"}}],
        }
