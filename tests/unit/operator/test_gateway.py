"""The gateway over real HTTP: tokens, deadlines, pages and errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import incluster_config
from prometheus_client import CollectorRegistry

from weightlease_operator.api_errors import (
    ApiError,
    Conflict,
    NotFound,
    NotLeading,
    Refused,
    Unavailable,
)
from weightlease_operator.gateway import Gateway, connect
from weightlease_operator.kinds import AGENTS, ARTIFACTS, JOBS, LEASES
from weightlease_operator.metrics import Metrics

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def gateway_to(
    handler: Handler, folder: Path, monkeypatch: pytest.MonkeyPatch, deadline: float = 5
) -> AsyncIterator[Gateway]:
    """A server with one handler for everything, and a gateway by a kubeconfig with a token."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config = folder / "kubeconfig"
    config.write_text(
        f"""{{"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{{"name": "c", "cluster": {{"server": "http://127.0.0.1:{runner.addresses[0][1]}"}}}}],
        "users": [{{"name": "u", "user": {{"token": "secret-token"}}}}],
        "contexts": [{{"name": "c", "context": {{"cluster": "c", "user": "u"}}}}]}}"""
    )
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(config))
    try:
        async with connect(deadline, Metrics(CollectorRegistry())) as gateway:
            yield gateway
    finally:
        await runner.cleanup()


async def test_calls_carry_the_token_the_path_and_the_patch_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str, str, str, Any]] = []

    async def handler(request: web.Request) -> web.Response:
        headers = request.headers
        body = await request.json()
        seen.append(
            (request.method, request.path, headers["Authorization"], headers["Content-Type"], body)
        )
        return web.json_response({"metadata": {}})

    async with gateway_to(handler, tmp_path, monkeypatch) as gateway:
        await gateway.patch(ARTIFACTS, "team", "m", {"status": {"a": None}}, subresource="status")
        await gateway.delete(JOBS, "team", "job")
    patch, delete = seen
    assert patch == (
        "PATCH",
        "/apis/weightlease.io/v1alpha1/namespaces/team/weightartifacts/m/status",
        "Bearer secret-token",
        "application/merge-patch+json",
        {"status": {"a": None}},
    )
    assert delete[:2] == ("DELETE", "/apis/batch/v1/namespaces/team/jobs/job")
    assert delete[4] == {"propagationPolicy": "Background"}


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, Refused),
        (401, Unavailable),
        (403, Refused),
        (404, NotFound),
        (409, Conflict),
        (422, Refused),
        (429, Unavailable),
        (500, Unavailable),
    ],
)
async def test_a_failure_is_typed_by_what_to_do_about_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, error: type[ApiError]
) -> None:
    async def handler(_request: web.Request) -> web.Response:
        return web.json_response({"message": "because of this"}, status=status)

    async with gateway_to(handler, tmp_path, monkeypatch) as gateway:
        with pytest.raises(error, match="because of this") as failure:
            await gateway.create(JOBS, "team", {})
    assert failure.value.status == status


async def test_a_server_that_does_not_answer_costs_a_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def handler(_request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError("never")

    async with gateway_to(handler, tmp_path, monkeypatch, deadline=0.2) as gateway:
        with pytest.raises(Unavailable):
            await gateway.get(AGENTS, "", "node")


async def test_an_answer_that_is_not_json_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def handler(_request: web.Request) -> web.Response:
        return web.Response(text="<html>")

    async with gateway_to(handler, tmp_path, monkeypatch) as gateway:
        with pytest.raises(Unavailable):
            await gateway.get(AGENTS, "", "node")


async def test_a_long_list_comes_in_pages_by_selector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def handler(request: web.Request) -> web.Response:
        selects = "weightlease.io/artifact-uid" in request.query.get("labelSelector", "")
        assert selects is request.path.endswith("jobs")
        page = int(request.query.get("continue", "0"))
        more = {"continue": str(page + 1)} if page < 2 else {}
        metadata = {"resourceVersion": "77"} | more
        return web.json_response({"metadata": metadata, "items": [{"page": page}]})

    async with gateway_to(handler, tmp_path, monkeypatch) as gateway:
        items, version = await gateway.list(JOBS)
        one_by_one = [item async for item in gateway.each(AGENTS)]
    assert [item["page"] for item in items] == [0, 1, 2]
    assert one_by_one == items
    assert version == "77"


async def test_in_a_pod_a_rotated_token_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, certificate = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("first")
    loader = incluster_config.InClusterConfigLoader(
        token_filename=str(token),
        cert_filename=str(certificate),
        environ={"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"},
    )
    certificate.write_text("not read before the first connection")
    configuration = Configuration()
    loader.load_and_set(configuration)
    assert await configuration.get_api_key_with_prefix("BearerToken") == "bearer first"
    token.write_text("second")
    loader.token_expires_at = loader.token_expires_at.replace(year=2000)
    assert await configuration.get_api_key_with_prefix("BearerToken") == "bearer second"


async def test_an_operator_that_may_not_lead_any_more_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append((request.method, request.path))
        return web.json_response({})

    async with gateway_to(handler, tmp_path, monkeypatch) as gateway:
        gateway.may_write = lambda: False
        with pytest.raises(NotLeading):
            await gateway.create(JOBS, "team", {})
        with pytest.raises(NotLeading):
            await gateway.patch(AGENTS, "", "node", {})
        with pytest.raises(NotLeading):
            await gateway.delete(JOBS, "team", "job")
        assert seen == []
        await gateway.get(AGENTS, "", "node")
        await gateway.patch(LEASES, "system", "operator", {})
    assert [method for method, _ in seen] == ["GET", "PATCH"]
