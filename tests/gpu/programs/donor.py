"""`donor.py SOCKET TRANSPORT`: lend the tower until stdin closes; one JSON line when it is ready,
one at the end with the report or the error."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import torch

from tower import KEY, given, loaded
from weightlease.gpu import serve_weight_cache
from weightlease.gpu.errors import GpuError


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def main() -> None:
    path, transport = sys.argv[1:]
    stop = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    model = loaded()
    with torch.no_grad():
        before = float(model(given()).sum())

    free = torch.cuda.mem_get_info

    def ready() -> None:
        grown = loaded_free - free()[0]
        with torch.no_grad():
            after = float(model(given()).sum())
        say(ready=True, before=before, after=after, grown_bytes=grown)

    torch.cuda.empty_cache()
    loaded_free = free()[0]

    try:
        report = serve_weight_cache(
            model, KEY, path, stop=stop, transport=transport, on_ready=ready
        )
    except GpuError as error:
        say(error=type(error).__name__, details=error.failure.details, message=str(error))
        sys.exit(3)
    say(granted=report.granted, fingerprint=report.fingerprint, nbytes=report.nbytes)


if __name__ == "__main__":
    main()
