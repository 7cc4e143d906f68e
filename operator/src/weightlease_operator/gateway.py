"""The one way to the API server, and the one module that knows its client.

Objects go in and come out as JSON: an operator that reads a thousand nodes does not want a thousand
trees of model objects. Every call has a deadline, every failure is an ApiError, and
no write leaves an operator that may not lead any more. The client takes
care of TLS, of kubeconfig or the pod's service account, and reads a rotated token again by itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.config import load_incluster_config, load_kube_config

from weightlease_operator.api_errors import ApiError, NotLeading, Unavailable, error_for
from weightlease_operator.failpoint import Failpoint
from weightlease_operator.kinds import LEASES, Kind
from weightlease_operator.metrics import Metrics

Json = dict[str, Any]
Objects = list[Json]

_NO_FAILPOINT = Failpoint()
_MERGE_PATCH = "application/merge-patch+json"
_PAGE = 500
_MESSAGE_LIMIT = 1024


class Gateway:
    """Calls to one API server; made by `connect`."""

    def __init__(
        self,
        client: ApiClient,
        deadline: float,
        metrics: Metrics,
        failpoint: Failpoint = _NO_FAILPOINT,
    ) -> None:
        self._client, self._failpoint = client, failpoint
        self.may_write: Callable[[], bool] = lambda: True
        self._timeout = aiohttp.ClientTimeout(total=deadline)
        self._metrics = metrics

    async def get(self, kind: Kind, namespace: str, name: str) -> Json:
        """Raises NotFound and the other ApiErrors."""
        return await self._call("GET", kind.object(namespace, name))

    async def list(self, kind: Kind) -> tuple[list[Json], str]:
        """All objects that the kind's selector admits, and the resource version of the list."""
        items: list[Json] = []
        query = {"limit": str(_PAGE)} | ({"labelSelector": kind.selector} if kind.selector else {})
        while True:
            page = await self._call("GET", kind.collection(), query=query)
            items += page.get("items") or ()
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return items, metadata.get("resourceVersion", "")
            query["continue"] = metadata["continue"]

    async def each(self, kind: Kind) -> AsyncIterator[Json]:
        """The same one by one; no more than a page is held at a time."""
        query = {"limit": str(_PAGE)}
        while True:
            page = await self._call("GET", kind.collection(), query=query)
            for item in page.get("items") or ():
                yield item
            more = (page.get("metadata") or {}).get("continue")
            if not more:
                return
            query["continue"] = more

    async def find(self, kind: Kind, namespace: str, selector: str) -> Objects:
        """At most a page of the objects that a field selector admits."""
        query = {"limit": str(_PAGE), "fieldSelector": selector}
        page = await self._call("GET", kind.collection(namespace), query=query)
        return list(page.get("items") or ())

    async def create(self, kind: Kind, namespace: str, body: Mapping[str, Any]) -> Json:
        """Raises Conflict when the name is taken."""
        return await self._write("POST", kind, kind.collection(namespace), body)

    async def patch(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        body: Mapping[str, Any],
        *,
        subresource: str = "",
    ) -> Json:
        """Apply a JSON merge patch; with metadata.resourceVersion in it, only to that version.

        Raises:
            Conflict: the object is of another version.

        """
        path = kind.object(namespace, name) + (f"/{subresource}" if subresource else "")
        return await self._write("PATCH", kind, path, body)

    async def delete(self, kind: Kind, namespace: str, name: str) -> None:
        """Delete in the background: dependents follow, nobody waits for a pod that cannot end."""
        options = {"propagationPolicy": "Background"}
        await self._write("DELETE", kind, kind.object(namespace, name), options)

    async def _write(self, method: str, kind: Kind, path: str, body: Mapping[str, Any]) -> Json:
        if kind is LEASES:  # how the right to write is won
            return await self._call(method, path, body=body)
        if not self.may_write():
            raise NotLeading(f"{method} {path}: another operator may lead by now")
        number = self._failpoint.begin()
        self._metrics.writes.labels(kind=kind.plural, verb=method.lower()).inc()
        answer = await self._call(method, path, body=body)
        self._failpoint.end(number)
        return answer

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Json:
        content = _MERGE_PATCH if method == "PATCH" else "application/json"
        try:
            request = await self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params={"Accept": "application/json", "Content-Type": content},
                body=body,
                auth_settings=["BearerToken"],
            )
            response = await self._client.call_api(*request, _request_timeout=self._timeout)
            payload: bytes = await response.read()
        except (aiohttp.ClientError, ApiException, OSError, TimeoutError) as error:
            raise Unavailable(f"{method} {path}: {type(error).__name__} {error}") from error
        if not 200 <= response.status < 300:
            raise _failure(response.status, f"{method} {path}", payload)
        try:
            answer: Json = json.loads(payload)
        except ValueError as error:
            raise Unavailable(f"{method} {path}: the answer is not JSON") from error
        return answer


def _failure(status: int, call: str, payload: bytes) -> ApiError:
    try:
        message = str(json.loads(payload)["message"])
    except (ValueError, KeyError, TypeError):
        message = payload[:_MESSAGE_LIMIT].decode(errors="replace")
    return error_for(status, f"{call}: {message[:_MESSAGE_LIMIT]}")


@asynccontextmanager
async def connect(
    deadline: float, metrics: Metrics, failpoint: Failpoint = _NO_FAILPOINT
) -> AsyncIterator[Gateway]:
    """A gateway by KUBECONFIG, else by the pod's service account; each call gets `deadline` s."""
    configuration = Configuration()
    kubeconfig = os.environ.get("KUBECONFIG")
    if os.environ.get("KUBERNETES_SERVICE_HOST") and not kubeconfig:
        load_incluster_config(client_configuration=configuration)
    else:
        await load_kube_config(config_file=kubeconfig, client_configuration=configuration)
    async with ApiClient(configuration) as client:
        yield Gateway(client, deadline, metrics, failpoint)
