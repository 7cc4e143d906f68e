"""The states of a connection, as a table: which method is allowed where, and where it leads.

    NEW ──hello──► READY ──begin_publication──► PUBLISHING ──open_file──► WRITING
                     ▲                            │  ▲                       │
                     ├──────finalize, abort───────┘  └──────close_file───────┤
                     │                                                       │ an error in
                     └──────finalize, abort──────── FAILED ◄─────────────────┘ either state

A publication that failed stays FAILED until its producer hears of it: the bytes it has already
sent are taken and dropped, its other requests get the failure again. A request that no row allows
is an error reply; a `write` outside WRITING and FAILED drops the peer, because the raw bytes behind
it would be read as frames.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where a connection is."""

    NEW = "new"
    READY = "ready"
    PUBLISHING = "publishing"
    WRITING = "writing"
    FAILED = "failed"


TRANSITIONS: dict[tuple[State, str], State] = {
    (State.NEW, "hello"): State.READY,
    (State.READY, "acquire"): State.READY,
    (State.READY, "release"): State.READY,
    (State.READY, "inspect"): State.READY,
    (State.READY, "cleanup"): State.READY,
    (State.READY, "publish_volume"): State.READY,
    (State.READY, "unpublish_volume"): State.READY,
    (State.READY, "list_volumes"): State.READY,
    (State.READY, "begin_publication"): State.PUBLISHING,
    (State.PUBLISHING, "declare"): State.PUBLISHING,
    (State.PUBLISHING, "open_file"): State.WRITING,
    (State.PUBLISHING, "finalize"): State.READY,
    (State.PUBLISHING, "abort"): State.READY,
    (State.WRITING, "write"): State.WRITING,
    (State.WRITING, "close_file"): State.PUBLISHING,
    (State.WRITING, "abort"): State.READY,
    (State.FAILED, "declare"): State.FAILED,
    (State.FAILED, "open_file"): State.FAILED,
    (State.FAILED, "write"): State.FAILED,
    (State.FAILED, "close_file"): State.FAILED,
    (State.FAILED, "finalize"): State.READY,
    (State.FAILED, "abort"): State.READY,
}


def next_state(state: State, method: str) -> State | None:
    """Where `method` leads from `state`; None where it is not allowed."""
    return TRANSITIONS.get((state, method))
