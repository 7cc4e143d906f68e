"""`python -m hubserver --repository NAME=FOLDER[@COMMIT] …`: serve until stopped.

Prints one JSON line once it listens: {"endpoint", "port", "repositories": {name: commit}}.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal

from hubserver.repository import Repository, load_repository
from hubserver.server import HubServer

_SPEC = re.compile(r"(?P<name>[^=]+)=(?P<folder>.+?)(?:@(?P<commit>[0-9a-f]{40}))?")


def repository_from(text: str) -> Repository:
    """Read NAME=FOLDER[@COMMIT]; a protected repository's token comes from HUB_TOKEN."""
    match = _SPEC.fullmatch(text)
    if match is None or not os.path.isdir(match["folder"]):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FOLDER[@COMMIT] with a folder")
    token = os.environ.get("HUB_TOKEN", "")
    return load_repository(
        match["name"], match["folder"], commit=match["commit"] or "", token=token
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="hubserver", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--repository", type=repository_from, action="append", required=True)
    options = parser.parse_args()
    server = HubServer(options.repository, host=options.host, port=options.port)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stopping.set())
    commits = {repository.name: repository.commit for repository in options.repository}
    line = {"endpoint": server.endpoint, "port": server.port, "repositories": commits}
    with server:
        print(json.dumps(line), flush=True)
        server.stopping.wait()


main()
