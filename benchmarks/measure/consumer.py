"""A consumer in a process of its own: leases an artifact, reads every page, holds it.

    python consumer.py SOCKET KEY

Says "holding" once it has read everything, then waits for a line.
"""

from __future__ import annotations

import sys

from weightlease import AgentStore

PAGE = 4096


def main() -> None:
    """Lease, read, hold."""
    path, key = sys.argv[1:3]
    with AgentStore(path, "") as store, store.acquire(key) as lease:
        views = [lease.buffer(name) for name in lease.names()]
        read = sum(sum(view[::PAGE]) for view in views)
        print("holding", read, flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main()
