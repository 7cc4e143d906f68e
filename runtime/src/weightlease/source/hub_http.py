"""The HTTP transport below huggingface_hub: what a hostile or tired server may do to us.

The Hub's client decides what to ask and when to ask again; this bounds it. The token goes to the
endpoint's own origin and nowhere else, whatever redirects and page links say. Every request has
timeouts. Bodies are neither compressed nor longer than expected: a compressed one, which the client
would unpack whatever its size, is refused. Retries, and waits that the server asks for, are
bounded. An answer for another commit than the one asked for is refused. Xet storage is not used:
its client buffers without a bound that we could set.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable, Iterator

import httpx2

MAX_LISTING_PAGE_BYTES = 64 * 1024 * 1024
# shorter than a store waits for a producer that is silent between two files
MAX_RETRY_AFTER_SECONDS = 30.0
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})
_COMMIT = "x-repo-commit"
# "api";r=0;t=55: none left of a window that ends in 55 seconds, which the client would wait for
_WINDOW_ENDS = re.compile(r"r\s*=\s*0+\s*;\s*t\s*=\s*(\d+)")


class GaveUp(Exception):
    """No further attempt; `status` is the last answer's, or 0 if there was none."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Moved(Exception):
    """The server answered for another commit, the one it names."""


class TooLong(Exception):
    """A body went past what was expected of it."""


class Compressed(Exception):
    """A body came in the encoding it names, which we had asked the server not to use."""


class BoundedTransport(httpx2.BaseTransport):
    """Wraps the network for one endpoint, one commit and one transfer at a time.

    `timeout` is in seconds, per connection attempt and per read. Set `body_limit` (bytes) and
    `on_bytes` (called with 0 when a request begins) before a file is asked for.
    """

    def __init__(self, endpoint: str, commit: str, *, retries: int, timeout: float) -> None:
        self._origin = _origin(httpx2.URL(endpoint))
        self._commit = commit
        self._retries = retries
        self._timeout = timeout
        self._networks: dict[str | None, httpx2.HTTPTransport] = {}
        self._failures = 0
        self.body_limit = MAX_LISTING_PAGE_BYTES
        self.on_bytes: Callable[[int], None] = _ignore

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request; raises GaveUp, Moved, Compressed and the client's transport errors."""
        if _origin(request.url) != self._origin:
            request.headers.pop("authorization", None)
        request.headers["accept-encoding"] = "identity"
        self.on_bytes(0)
        request.extensions = {**request.extensions, "timeout": self._timeouts()}
        try:
            response = self._network(request.url).handle_request(request)
        except httpx2.TransportError as error:
            self._failed(f"{type(error).__name__} from {request.url.host}", 0)
            raise
        if response.status_code in _RETRIED:
            self._refuse_long_wait(response)
            self._failed(
                f"status {response.status_code} from {request.url.host}", response.status_code
            )
        else:
            self._failures = 0
        encoding = response.headers.get("content-encoding", "identity")
        if encoding.strip().lower() not in {"", "identity"}:
            response.close()
            raise Compressed(encoding[:64])
        named = response.headers.get(_COMMIT, self._commit)
        if named != self._commit:
            raise Moved(named[:64])
        return self._bounded(response)

    def close(self) -> None:
        """Close every connection; the next request opens new ones."""
        while self._networks:
            self._networks.popitem()[1].close()

    def _network(self, url: httpx2.URL) -> httpx2.HTTPTransport:
        # A client with a transport of its own does not look at proxy variables itself.
        direct = url.host == "" or urllib.request.proxy_bypass(url.host)
        proxy = None if direct else urllib.request.getproxies().get(url.scheme)
        if proxy not in self._networks:
            self._networks[proxy] = httpx2.HTTPTransport(proxy=proxy)
        return self._networks[proxy]

    def _timeouts(self) -> dict[str, float]:
        return dict.fromkeys(("connect", "read", "write", "pool"), self._timeout)

    def _failed(self, message: str, status: int) -> None:
        self._failures += 1
        if self._failures > self._retries:
            raise GaveUp(f"{message}, attempt {self._failures}", status)

    def _refuse_long_wait(self, response: httpx2.Response) -> None:
        after = response.headers.get("retry-after", "").strip()
        # The Hub counts in every answer; only to this one the client reacts.
        limited = response.headers.get("ratelimit", "") if response.status_code == 429 else ""
        asked = _WINDOW_ENDS.findall(limited)
        for seconds in [*asked, after] if after.isdecimal() else asked:
            if float(seconds) > MAX_RETRY_AFTER_SECONDS:
                raise GaveUp(f"asked to wait {seconds[:12]} s", response.status_code)

    def _bounded(self, response: httpx2.Response) -> httpx2.Response:
        headers = [
            (name, value)
            for name, value in response.headers.multi_items()
            if not name.lower().startswith("x-xet-")
        ]
        return httpx2.Response(
            response.status_code,
            headers=headers,
            stream=_Bounded(response, self.body_limit, self.on_bytes),
            extensions=response.extensions,
        )


class _Bounded(httpx2.SyncByteStream):
    def __init__(
        self, response: httpx2.Response, limit: int, on_bytes: Callable[[int], None]
    ) -> None:
        self._response = response
        self._limit = limit
        self._on_bytes = on_bytes

    def __iter__(self) -> Iterator[bytes]:
        left = self._limit
        for chunk in self._response.iter_raw():
            left -= len(chunk)
            if left < 0:
                raise TooLong(f"a body exceeds {self._limit} bytes")
            self._on_bytes(len(chunk))
            yield chunk

    def close(self) -> None:
        self._response.close()


def _ignore(_count: int) -> None:
    pass


def _origin(url: httpx2.URL) -> tuple[str, str, int]:
    default = {"http": 80, "https": 443}.get(url.scheme, 0)
    return url.scheme, url.host.lower(), url.port or default
