"""Steps on standard error, each with the time it took; a heartbeat while a long one runs."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_HEARTBEAT_SECONDS = 30.0
_lock = threading.Lock()
_started = time.monotonic()


def say(text: str) -> None:
    """One line, prefixed by the seconds since the command began."""
    with _lock:
        print(f"[{time.monotonic() - _started:6.1f} s] {text}", file=sys.stderr, flush=True)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Announces ``what``, then how long it took or that it failed."""
    begun = time.monotonic()
    say(f"{what} ...")
    ended = threading.Event()
    beat = threading.Thread(target=_heartbeat, args=(what, begun, ended), daemon=True)
    beat.start()
    try:
        yield
    except BaseException:
        say(f"{what}: failed after {time.monotonic() - begun:.1f} s")
        raise
    finally:
        ended.set()
        beat.join()
    say(f"{what}: {time.monotonic() - begun:.1f} s")


def _heartbeat(what: str, begun: float, ended: threading.Event) -> None:
    while not ended.wait(_HEARTBEAT_SECONDS):
        say(f"{what}: still running after {time.monotonic() - begun:.0f} s")
