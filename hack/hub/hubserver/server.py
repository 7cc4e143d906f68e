"""The server: threads, an optional second origin for LFS bytes, and a record of what was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from typing import Self

from hubserver.faults import Fault, Faults
from hubserver.handler import Handler
from hubserver.repository import HubFile, Repository


@dataclass(frozen=True)
class SeenRequest:
    """One request as it arrived; `authorization` is the header's value or empty."""

    origin: str
    method: str
    path: str
    authorization: str


class HubServer:
    """Serves repositories; a context manager.

    With `separate_storage` LFS bytes come from a second port, which is another origin, as they do
    on the real Hub. `page_size` is the number of entries on one page of a tree listing.
    """

    def __init__(
        self,
        repositories: list[Repository],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        separate_storage: bool = False,
        page_size: int = 1000,
    ) -> None:
        self.repositories = {repository.name: repository for repository in repositories}
        self.page_size = page_size
        self.faults = Faults()
        self.requests: list[SeenRequest] = []
        self.stopping = threading.Event()
        self._arrived = threading.Condition()
        self._main = _Listener(self, "hub", host, port)
        self._storage = _Listener(self, "storage", host, 0) if separate_storage else self._main
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        for listener in {self._main, self._storage}:
            thread = threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *raised: object) -> None:
        self.stopping.set()
        for listener in {self._main, self._storage}:
            if self._threads:
                listener.shutdown()
            listener.server_close()
        for thread in self._threads:
            thread.join()

    @property
    def port(self) -> int:
        """The hub's port."""
        return int(self._main.server_address[1])

    @property
    def storage_port(self) -> int:
        """The port that LFS bytes come from; the hub's own without separate storage."""
        return int(self._storage.server_address[1])

    @property
    def endpoint(self) -> str:
        """The address for HF_ENDPOINT."""
        return f"http://127.0.0.1:{self.port}"

    def fault(self, fault: Fault) -> None:
        """Commit `fault` from the next matching request on."""
        self.faults.add(fault)

    def wait_for(self, wanted: Callable[[SeenRequest], bool], timeout: float = 30.0) -> None:
        """Block until a request that is `wanted` has arrived; raises TimeoutError."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: any(map(wanted, self.requests)), timeout):
                raise TimeoutError("no such request arrived")

    def record(self, request: SeenRequest) -> None:
        """Keep one request for tests to look at."""
        with self._arrived:
            self.requests.append(request)
            self._arrived.notify_all()

    def stored(self, sha256: str) -> HubFile | None:
        """The LFS file with this digest."""
        for repository in self.repositories.values():
            for file in repository.files.values():
                if file.sha256 == sha256:
                    return file
        return None


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    # a stalled handler must not keep server_close waiting
    block_on_close = False

    def __init__(self, hub: HubServer, origin: str, host: str, port: int) -> None:
        self.hub = hub
        self.origin = origin
        super().__init__((host, port), Handler)

    def record(self, method: str, path: str, authorization: str) -> None:
        """Keep one request, with where it arrived."""
        self.hub.record(SeenRequest(self.origin, method, path, authorization))
