"""One request: routes, access, listings, redirects and bytes."""

from __future__ import annotations

import gzip
import json
import re
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from hubserver.faults import Fault, FaultKind
from hubserver.repository import CHUNK, HubFile, Repository

if TYPE_CHECKING:
    from hubserver.server import HubServer

# `organisation/name` or a bare `name`
_NAME = r"(?P<repo>[^/]+(?:/[^/]+)?)"
_ROUTES = (
    ("revision", re.compile(rf"/api/models/{_NAME}/revision/(?P<revision>[^/]+)")),
    ("tree", re.compile(rf"/api/models/{_NAME}/tree/(?P<revision>[^/]+)(?:/(?P<path>.*))?")),
    ("storage", re.compile(r"/storage/(?P<sha256>[0-9a-f]{64})")),
    ("resolve", re.compile(rf"/{_NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)")),
)
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_BODY_FAULTS = frozenset({FaultKind.TRUNCATE, FaultKind.FLIP, FaultKind.STALL})


class _Answer(Exception):
    """An answer without a body, with the headers by which the Hub's client tells errors apart."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers or {}


def _error(status: HTTPStatus, code: str, message: str) -> _Answer:
    return _Answer(status, {"X-Error-Code": code, "X-Error-Message": message})


class Handler(BaseHTTPRequestHandler):
    """Speaks HTTP/1.1 with keep-alive."""

    protocol_version = "HTTP/1.1"
    timeout = 30
    server: Any

    @property
    def hub(self) -> HubServer:
        """The server's state."""
        hub: HubServer = self.server.hub
        return hub

    def do_GET(self) -> None:
        self._handle()

    def do_HEAD(self) -> None:
        self._handle()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - inherited signature
        """Nothing: the record of requests is what tests read."""

    def _handle(self) -> None:
        self.server.record(self.command, self.path, self.headers.get("Authorization", ""))
        try:
            self._require_no_fault()
            self._route()
        except _Answer as answer:
            self._send(answer.status, answer.headers, b"")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _require_no_fault(self) -> None:
        fault = self.hub.faults.take(self.command, self.path, frozenset({FaultKind.STATUS}))
        if fault is not None:
            raise _Answer(fault.status, fault.headers)

    def _route(self) -> None:
        url = urlsplit(self.path)
        for name, pattern in _ROUTES:
            match = pattern.fullmatch(unquote(url.path))
            if match is None:
                continue
            if name == "storage":
                self._serve_storage(match["sha256"])
                return
            repository = self._repository(match["repo"], match["revision"])
            if name == "revision":
                self._send_json(_model_info(repository))
            elif name == "tree":
                self._serve_tree(repository, (match["path"] or "").strip("/"), parse_qs(url.query))
            else:
                self._serve_file(repository, match["path"])
            return
        raise _error(HTTPStatus.NOT_FOUND, "RepoNotFound", "Repository not found")

    def _repository(self, name: str, revision: str) -> Repository:
        repository = self.hub.repositories.get(name)
        authorization = self.headers.get("Authorization", "")
        if repository is None:
            # The Hub does not tell strangers which repositories exist.
            status = HTTPStatus.NOT_FOUND if authorization else HTTPStatus.UNAUTHORIZED
            raise _error(status, "RepoNotFound", "Repository not found")
        if repository.token and authorization != f"Bearer {repository.token}":
            if repository.gated:
                raise _error(HTTPStatus.FORBIDDEN, "GatedRepo", f"Access to {name} is restricted")
            raise _error(HTTPStatus.UNAUTHORIZED, "RepoNotFound", "Invalid username or password.")
        if not repository.has(revision):
            raise _error(HTTPStatus.NOT_FOUND, "RevisionNotFound", "Invalid rev id")
        return repository

    def _serve_tree(self, repository: Repository, path: str, query: dict[str, list[str]]) -> None:
        fault = self._fault(FaultKind.LISTING)
        if fault is not None:
            self._send_json(fault.entries)
            return
        prefix = f"{path}/" if path else ""
        entries = [
            file.tree_entry() for file in repository.files.values() if file.path.startswith(prefix)
        ]
        if prefix and not entries:
            raise _error(HTTPStatus.NOT_FOUND, "EntryNotFound", "Entry not found")
        start = int(query.get("cursor", ["0"])[0])
        end = start + self.hub.page_size
        headers = {}
        if end < len(entries):
            where = urlsplit(self.path).path
            more = urlencode({"recursive": "true", "cursor": str(end)})
            headers["Link"] = f'<{self._own_origin()}{where}?{more}>; rel="next"'
        fault = self._fault(FaultKind.LINK)
        if fault is not None:
            headers["Link"] = fault.headers["Link"]
        self._send_json(entries[start:end], headers)

    def _serve_file(self, repository: Repository, path: str) -> None:
        file = repository.files.get(path)
        if file is None:
            raise _Answer(
                HTTPStatus.NOT_FOUND,
                {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": repository.commit},
            )
        moved = self._fault(FaultKind.MOVED)
        headers = {"X-Repo-Commit": "f" * 40 if moved else repository.commit}
        if not file.sha256:
            self._send_bytes(file, {**headers, "ETag": f'"{file.etag}"'})
            return
        linked = {"X-Linked-Etag": f'"{file.sha256}"', "X-Linked-Size": str(file.size)}
        headers = {**headers, **linked}
        if self.hub.storage_port == self.hub.port:
            # The client would follow a redirect on the Hub itself, away from these headers.
            self._send_bytes(file, {**headers, "ETag": f'"{file.sha256}"'})
            return
        host = self.headers.get("Host", "127.0.0.1").rpartition(":")[0] or "127.0.0.1"
        location = f"http://{host}:{self.hub.storage_port}/storage/{file.sha256}"
        self._send(HTTPStatus.FOUND, {**headers, "Location": location}, b"")

    def _serve_storage(self, sha256: str) -> None:
        file = self.hub.stored(sha256)
        if file is None:
            raise _Answer(HTTPStatus.NOT_FOUND)
        self._send_bytes(file, {"ETag": f'"{sha256}"'})

    def _fault(self, kind: FaultKind) -> Fault | None:
        return self.hub.faults.take(self.command, self.path, frozenset({kind}))

    def _send_bytes(self, file: HubFile, headers: dict[str, str]) -> None:
        if self._fault(FaultKind.COMPRESS):
            with open(file.location, "rb") as source:
                self._send_compressed(headers, source.read())
            return
        start, end, status = 0, file.size, HTTPStatus.OK
        if match := _RANGE.fullmatch(self.headers.get("Range", "")):
            start = int(match[1])
            end = min(int(match[2]) + 1, file.size) if match[2] else file.size
            if start >= end:
                answer = {"Content-Range": f"bytes */{file.size}"}
                raise _Answer(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, answer)
            status = HTTPStatus.PARTIAL_CONTENT
            headers = {**headers, "Content-Range": f"bytes {start}-{end - 1}/{file.size}"}
        headers = {**headers, "Accept-Ranges": "bytes"}
        self._send_head(status, headers, end - start)
        if self.command == "GET":
            fault = self.hub.faults.take(self.command, self.path, _BODY_FAULTS)
            self._copy(file, start, end, fault)

    def _copy(self, file: HubFile, start: int, end: int, fault: Fault | None) -> None:
        kind = fault.kind if fault else None
        half = start + (end - start) // 2
        stop = half if kind in {FaultKind.TRUNCATE, FaultKind.STALL} else end
        with open(file.location, "rb") as source:
            source.seek(start)
            position = start
            while position < stop and (chunk := source.read(min(CHUNK, stop - position))):
                if kind is FaultKind.FLIP and position <= half < position + len(chunk):
                    flipped = bytearray(chunk)
                    flipped[half - position] ^= 0x40
                    chunk = bytes(flipped)
                self.wfile.write(chunk)
                position += len(chunk)
        if kind is FaultKind.STALL:
            self.wfile.flush()
            self.hub.stopping.wait(60)
        if stop < end:
            self.close_connection = True

    def _own_origin(self) -> str:
        return f"http://{self.headers.get('Host', f'127.0.0.1:{self.hub.port}')}"

    def _send_json(self, value: object, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        content = {"Content-Type": "application/json", **(headers or {})}
        if self._fault(FaultKind.COMPRESS):
            self._send_compressed(content, body)
        else:
            self._send(HTTPStatus.OK, content, body)

    def _send_compressed(self, headers: dict[str, str], body: bytes) -> None:
        self._send(HTTPStatus.OK, {**headers, "Content-Encoding": "gzip"}, gzip.compress(body))

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self._send_head(status, headers, len(body))
        if self.command == "GET":
            self.wfile.write(body)

    def _send_head(self, status: int, headers: dict[str, str], length: int) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()


def _model_info(repository: Repository) -> dict[str, object]:
    return {
        "id": repository.name,
        "modelId": repository.name,
        "sha": repository.commit,
        "private": bool(repository.token),
        "gated": "manual" if repository.gated else False,
        "siblings": [{"rfilename": path} for path in repository.files],
    }
