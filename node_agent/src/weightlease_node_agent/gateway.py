"""The API server, through the official client; nothing else in the agent imports it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from kubernetes.aio import client, config
from pydantic import ValidationError

from weightlease.api.weight_node import WeightNode
from weightlease.names import GROUP, VERSION
from weightlease_node_agent.cluster import (
    ClusterError,
    ClusterGoneError,
    NodeEvent,
    NodeSeen,
    TokenVerdict,
    WatchLost,
)

PLURAL = "weightnodes"
_CALL_SECONDS = 10.0
_WATCH_SECONDS = 290
# A watch whose server has vanished without a word ends by the client's own clock.
_WATCH_GRACE_SECONDS = 15.0
_FIRST_RETRY_SECONDS = 0.5
_LAST_RETRY_SECONDS = 30.0
_GONE = 410
_NOT_FOUND = 404
_FAILURES = (client.ApiException, aiohttp.ClientError, TimeoutError, OSError)
_MAX_LINE_BYTES = 8 * 1024 * 1024


class KubernetesCluster:
    """A `Cluster` over kubernetes.aio."""

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api
        self._objects = client.CustomObjectsApi(api)
        self._authentication = client.AuthenticationV1Api(api)

    @classmethod
    async def connect(cls, kubeconfig: str) -> KubernetesCluster:
        """With the pod's service account, or a kubeconfig file.

        Raises:
            ClusterError: no configuration is to be had.

        """
        configuration = client.Configuration()
        try:
            if kubeconfig:
                await config.load_kube_config(kubeconfig, client_configuration=configuration)
            else:
                config.load_incluster_config(client_configuration=configuration)
        except (config.ConfigException, OSError) as error:
            raise ClusterError(
                f"no way to the API server: {error}; run in a pod, set WEIGHTLEASE_KUBECONFIG, or "
                "use --auth uid on a bare host"
            ) from error
        return cls(client.ApiClient(configuration))

    async def close(self) -> None:
        await self._api.close()

    async def review_token(self, token: str, audience: str) -> TokenVerdict:
        spec = client.V1TokenReviewSpec(token=token, audiences=[audience])
        body = client.V1TokenReview(spec=spec)
        try:
            review = await self._authentication.create_token_review(
                body, _request_timeout=_CALL_SECONDS
            )
        except _FAILURES as error:
            raise ClusterError(_describe("token review", error)) from None
        status = review.status
        if status is None:
            raise ClusterError("token review: the API server answered without a status")
        user = status.user
        return TokenVerdict(
            authenticated=bool(status.authenticated),
            username=(user.username or "") if user else "",
            audiences=tuple(status.audiences or ()),
            extra=dict(user.extra or {}) if user else {},
            error=status.error or "",
        )

    async def patch_status(self, name: str, status: dict[str, Any]) -> None:
        # A JSON patch replaces the whole status; a merge would keep fields that have gone.
        body = [{"op": "add", "path": "/status", "value": status}]
        try:
            await self._objects.patch_cluster_custom_object_status(
                GROUP,
                VERSION,
                PLURAL,
                name,
                body,
                _content_type="application/json-patch+json",  # the client would say merge-patch
                _request_timeout=_CALL_SECONDS,
            )
        except _FAILURES as error:
            if isinstance(error, client.ApiException) and error.status == _NOT_FOUND:
                raise ClusterGoneError(f"there is no WeightNode {name!r}") from None
            raise ClusterError(_describe("status patch", error)) from None

    async def watch_node(self, name: str) -> AsyncIterator[NodeEvent]:
        pause = _FIRST_RETRY_SECONDS
        while True:
            try:
                version, node = await self._list(name)
                yield NodeSeen(node)
                async for event in self._follow(name, version):
                    pause = _FIRST_RETRY_SECONDS
                    yield event
            except _FAILURES as error:
                yield WatchLost(_describe("watch", error))
            except (ValidationError, ValueError, KeyError, TypeError) as error:
                yield WatchLost(f"the API server sent an object of another shape: {error}")
            await asyncio.sleep(pause * (1 + random.random()))  # noqa: S311 - jitter
            pause = min(pause * 2, _LAST_RETRY_SECONDS)

    async def _list(self, name: str) -> tuple[str, WeightNode | None]:
        found: Any = await self._objects.list_cluster_custom_object(
            GROUP,
            VERSION,
            PLURAL,
            field_selector=f"metadata.name={name}",
            _request_timeout=_CALL_SECONDS,
        )
        items = found["items"]
        return found["metadata"]["resourceVersion"], WeightNode.parse(items[0]) if items else None

    async def _follow(self, name: str, version: str) -> AsyncIterator[NodeEvent]:
        """Events from `version` on, over as many watches as it takes; ends for a new list."""
        while True:
            response = await self._objects.list_cluster_custom_object_without_preload_content(
                GROUP,
                VERSION,
                PLURAL,
                field_selector=f"metadata.name={name}",
                resource_version=version,
                watch=True,
                allow_watch_bookmarks=True,
                timeout_seconds=_WATCH_SECONDS,
                _request_timeout=_WATCH_SECONDS + _WATCH_GRACE_SECONDS,
            )
            if response.status == _GONE:
                response.release()
                return
            silent = True
            try:
                async for event in _events(response):
                    silent = False
                    kind, item = event["type"], event["object"]
                    if kind == "ERROR":
                        return
                    version = item["metadata"]["resourceVersion"]
                    if kind in {"ADDED", "MODIFIED"}:
                        yield NodeSeen(WeightNode.parse(item))
                    elif kind == "DELETED":
                        yield NodeSeen(None)
            finally:
                response.release()
            if silent:
                # An API server that ends each watch at once would be asked again without a pause.
                await asyncio.sleep(_FIRST_RETRY_SECONDS)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of a watch, one a line; a line may be as large as an object."""
    response.raise_for_status()
    pending = b""
    async for chunk in response.content.iter_any():
        pending += chunk
        *lines, pending = pending.split(b"\n")
        for line in lines:
            if line.strip():
                yield json.loads(line)
        if len(pending) > _MAX_LINE_BYTES:
            raise ValueError(f"a watch event exceeds {_MAX_LINE_BYTES} bytes")


def _describe(what: str, error: BaseException) -> str:
    # The client's own text holds headers and bodies; neither belongs into a log.
    if isinstance(error, client.ApiException):
        return f"{what}: the API server answered {error.status} {error.reason}"
    return f"{what}: {type(error).__name__}: {str(error)[:200]}"
