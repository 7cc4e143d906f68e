"""Lease an artifact, touch every page, and say once a second what it is: until stopped.

One JSON line each: {"count", "sha256" of all payload bytes, "artifactBytes", "rss", "pss"}.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time

import serve_minilm
import weightlease


def main() -> None:
    with weightlease.connect() as store, store.acquire(sys.argv[1]) as lease:
        for count in range(600):
            digest = hashlib.sha256()
            for name in sorted(lease.names()):
                digest.update(lease.buffer(name))
            rss, pss = serve_minilm.resident_bytes(lease)
            line = {
                "count": count,
                "sha256": digest.hexdigest(),
                "artifactBytes": lease.shared_bytes,
                "rss": rss,
                "pss": pss,
            }
            print(json.dumps(line), flush=True)
            time.sleep(1)


main()
