"""/healthz, /readyz and /metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

_HOST_TIMEOUT_SECONDS = 5.0


class HttpServer:
    """Serves probes and metrics.

    `problems` lists what keeps the agent from being ready; `refresh` looks at the stores before
    each scrape.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        problems: Callable[[], Awaitable[list[str]]],
        refresh: Callable[[], Awaitable[None]],
    ) -> None:
        self._registry = registry
        self._refresh = refresh
        self._problems = problems
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; the port, which is a free one when 0 was asked for.

        Raises:
            OSError: the address can't be had.

        """
        application = web.Application()
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(
            application, access_log=None, shutdown_timeout=_HOST_TIMEOUT_SECONDS
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        problems = await self._problems()
        return web.Response(
            text="".join(f"{problem}\n" for problem in problems) or "ok\n",
            status=503 if problems else 200,
        )

    async def _metrics(self, _: web.Request) -> web.Response:
        await self._refresh()
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )
