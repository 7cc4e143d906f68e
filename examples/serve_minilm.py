"""Serve sentence embeddings from leased weights until stopped.

    python serve_minilm.py [--artifact minilm] [--store ROOT] [--wait 600] [--port 8080 | --once]

Prints one JSON line when it is ready:

    {"pod", "node", "artifact", "key", "leaseMilliseconds", "tensors", "artifactBytes",
     "rssBytes", "pssBytes",            of the artifact's files in this process
     "embeddingSha256", "embedding"}    of the example sentences; the first numbers of the first

GET /healthz, GET /report (the same, measured again), POST /embed {"sentences": [...]}.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import weightlease
from minilm import SENTENCES, Encoder, digest
from weightlease.errors import FailureCode, WeightLeaseError
from weightlease.store.local import LocalStore

# not warmed yet, or the agent restarts
WORTH_WAITING = {FailureCode.LOCAL_MISS, FailureCode.DOMAIN_UNAVAILABLE}
MAX_BODY_BYTES = 1024 * 1024
MAX_SENTENCES = 256
_SMAPS_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ (?P<inode>\d+)")


class Service:
    """One lease, the model on it, and what they cost."""

    def __init__(self, artifact: str, lease: weightlease.WeightLease, milliseconds: float) -> None:
        self.artifact = artifact
        self.lease = lease
        self.milliseconds = milliseconds
        # configs and tokenizer are read from the lease too
        with lease.directory() as folder:
            self.encoder = Encoder(folder, lease.tensors())
        # a model is not written for several threads
        self.guard = threading.Lock()

    def embed(self, sentences: list[str]) -> list[list[float]]:
        """One embedding per sentence."""
        with self.guard:
            rows: list[list[float]] = self.encoder.embed(sentences).tolist()
        return rows

    def report(self) -> dict[str, Any]:
        """What this process holds and computes, measured now."""
        with self.guard:
            embeddings = self.encoder.embed(SENTENCES)
        rss, pss = resident_bytes(self.lease)
        return {
            "pod": os.environ.get("POD_NAME", ""),
            "node": os.environ.get("NODE_NAME", ""),
            "artifact": self.artifact,
            "key": self.lease.key,
            "leaseMilliseconds": round(self.milliseconds, 3),
            "tensors": len(self.lease.names()),
            "artifactBytes": self.lease.shared_bytes,
            "rssBytes": rss,
            "pssBytes": pss,
            "embeddingSha256": digest(embeddings),
            "embedding": [round(value, 6) for value in embeddings[0][:4].tolist()],
        }


def resident_bytes(lease: weightlease.WeightLease) -> tuple[int, int]:
    """Rss and Pss of the mappings of the artifact's payload files, in bytes."""
    payload = {entry.file_name for entry in lease.manifest.files}
    inodes = {os.stat(path).st_ino for name, path in lease.files().items() if name in payload}
    rss = pss = 0
    counted = False
    with open("/proc/self/smaps", encoding="utf-8") as smaps:
        for line in smaps:
            if match := _SMAPS_MAPPING.match(line):
                counted = int(match["inode"]) in inodes
            elif counted and line.startswith("Rss:"):
                rss += int(line.split()[1]) * 1024
            elif counted and line.startswith("Pss:"):
                pss += int(line.split()[1]) * 1024
    return rss, pss


class Handler(BaseHTTPRequestHandler):
    """Three routes; the server carries the service."""

    protocol_version = "HTTP/1.1"
    timeout = 30
    server: Any

    def do_GET(self) -> None:
        if self.path == "/healthz":
            self.answer(200, {"status": "ok"})
        elif self.path == "/report":
            self.answer(200, self.server.service.report())
        else:
            self.answer(404, {"error": "routes: /healthz, /report, /embed"})

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self.path != "/embed" or not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            self.close_connection = True
            self.answer(400, {"error": f"POST /embed takes at most {MAX_BODY_BYTES} bytes"})
            return
        sentences = sentences_of(self.rfile.read(int(length)))
        if sentences is None:
            self.answer(400, {"error": f"sentences must be 1 to {MAX_SENTENCES} texts"})
        else:
            self.answer(200, {"embeddings": self.server.service.embed(sentences)})

    def answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - inherited signature
        """Nothing: stdout carries the report alone."""


def sentences_of(body: bytes) -> list[str] | None:
    """The sentences of a request, or None if it has none or too many."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    found = value.get("sentences") if isinstance(value, dict) else None
    if not isinstance(found, list) or not 1 <= len(found) <= MAX_SENTENCES:
        return None
    return found if all(isinstance(sentence, str) for sentence in found) else None


def acquire(options: argparse.Namespace) -> tuple[weightlease.WeightLease, float]:
    """A lease and the milliseconds it took; waits while the node does not hold the artifact yet."""
    deadline = time.monotonic() + options.wait
    while True:
        began = time.perf_counter()
        try:
            lease = acquire_now(options.artifact, options.store)
        except WeightLeaseError as error:
            if error.failure.code not in WORTH_WAITING or time.monotonic() > deadline:
                raise
            print(f"waiting: {error}", file=sys.stderr, flush=True)
            time.sleep(1)
        else:
            return lease, (time.perf_counter() - began) * 1000


def acquire_now(artifact: str, root: str | None) -> weightlease.WeightLease:
    """A lease through the node's agent, or of a key in the local store at `root`."""
    if root is None:
        return weightlease.connect().acquire(artifact)
    found = LocalStore(root).lookup_key(artifact)
    if found.lease is None:
        raise SystemExit(str(found.failure or f"{root} does not hold {artifact}"))
    return found.lease


def serve(service: Service, port: int) -> None:
    """Answer until SIGTERM."""
    server: Any = ThreadingHTTPServer(("", port), Handler)
    server.daemon_threads = True
    server.service = service
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    print(json.dumps(service.report()), flush=True)
    stop.wait()
    server.shutdown()
    server.server_close()


def main() -> int:
    parser = argparse.ArgumentParser(description="sentence embeddings from leased weights")
    parser.add_argument("--artifact", default="minilm", help="reference or key")
    parser.add_argument("--store", help="root of a local store, instead of the node's agent")
    parser.add_argument("--wait", type=float, default=600.0, help="seconds, for a node to be ready")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--once", action="store_true", help="print the report and end")
    options = parser.parse_args()
    lease, milliseconds = acquire(options)
    with lease:
        service = Service(options.artifact, lease, milliseconds)
        if options.once:
            print(json.dumps(service.report()), flush=True)
        else:
            serve(service, options.port)
    return 0


if __name__ == "__main__":
    sys.exit(main())
