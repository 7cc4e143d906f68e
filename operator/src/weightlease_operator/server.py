"""/healthz, /readyz and /metrics.

Alive: the loop that lists everything anew has begun a round not long ago. Ready: a first list of
every kind is in, so that decisions are made on the whole picture.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from weightlease_operator.metrics import Metrics

_HANDLER_SECONDS = 10
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(
    metrics: Metrics,
    *,
    refresh: Callable[[], None],
    alive: Callable[[], bool],
    ready: Callable[[], bool],
) -> web.Application:
    """`refresh` sets the gauges that are counted only when somebody asks."""

    def answer(check: Callable[[], bool]) -> _Handler:
        async def handler(_request: web.Request) -> web.Response:
            return web.Response(text="ok\n") if check() else web.Response(status=503, text="no\n")

        return handler

    async def exposition(_request: web.Request) -> web.Response:
        refresh()
        page = generate_latest(metrics.registry)
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/healthz", answer(alive))
    app.router.add_get("/readyz", answer(ready))
    app.router.add_get("/metrics", exposition)
    return app


@asynccontextmanager
async def serving(app: web.Application, address: str, port: int) -> AsyncIterator[int]:
    """Serve while the context lasts; yields the port, chosen by the kernel when it was 0."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_HANDLER_SECONDS)
    await runner.setup()
    try:
        site = web.TCPSite(runner, address, port)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
