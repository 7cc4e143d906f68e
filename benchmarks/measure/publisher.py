"""A producer in a process of its own: publishes once, says how long it took and what it held.

    python publisher.py local ROOT FOLDER STORAGE_CLASS NAME SHAPE
    python publisher.py agent SOCKET FOLDER STORAGE_CLASS NAME SHAPE
    python publisher.py peer ROOT FOLDER STORAGE_CLASS NAME SHAPE

FOLDER is on the same file system. SHAPE is "<files>:<tensor bytes>,<tensor bytes>,…". Timed is from
the request to build until the artifact is published, durable and leased or confirmed; the bytes are
in memory before that. The artifact is removed afterwards. Prints {"seconds": …, "peak_rss_mib": …}.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from measure.agent import peak_rss_mib
from measure.artifacts import Producer, Shape, producer
from measure.peer import PeerProducer, open_store, runtime, their_identity
from measure.places import claim_memory
from weightlease import AgentStore, LocalStore
from weightlease.names import StorageClass
from weightlease.policy import DomainPolicy
from weightlease.reports import CleanupStatus, StoreStatus


def main() -> None:
    """Publish, report, remove."""
    how, where, folder, storage_class, name, text = sys.argv[1:7]
    files, _, sizes = text.partition(":")
    shape = Shape(int(files), tuple(int(size) for size in sizes.split(",")))
    publishers: dict[str, Callable[[str, str, Producer], float]] = {
        "local": publish_locally,
        "agent": publish_through_agent,
        "peer": publish_by_peer,
    }
    made = producer(name, shape)
    if storage_class == StorageClass.MEMORY:
        claim_memory(Path(folder), shape.total_bytes)
    seconds = publishers[how](where, storage_class, made)
    print(json.dumps({"seconds": seconds, "peak_rss_mib": peak_rss_mib()}))


def publish_locally(root: str, storage_class: str, made: Producer) -> float:
    """Seconds through `LocalStore`."""
    store = LocalStore(root, DomainPolicy(storage_class=StorageClass(storage_class)))
    started = time.perf_counter()
    result = store.get_or_build(made)
    seconds = time.perf_counter() - started
    if result.status is not StoreStatus.BUILT or result.lease is None:
        raise RuntimeError(f"nothing was built: {result}")
    result.lease.close()
    removed(store.cleanup(made.identity.key).status)
    return seconds


def publish_through_agent(socket: str, storage_class: str, made: Producer) -> float:
    """Seconds through the agent."""
    with AgentStore(socket, "") as store:
        store.hello()
        started = time.perf_counter()
        with store.begin(
            made.identity, made.total_bytes, storage_class=storage_class
        ) as publication:
            publication.finalize(made.produce(publication))
        seconds = time.perf_counter() - started
        removed(store.cleanup(made.identity.key).status)
    return seconds


def publish_by_peer(root: str, storage_class: str, made: Producer) -> float:
    """Seconds through vllm-omni's store; its lookups check what ours check."""
    hwr = runtime()
    store = open_store(Path(root), storage_class)
    theirs, identity = PeerProducer(made), their_identity(made.identity)
    level = hwr.ValidationLevel.MANIFEST_AND_METADATA
    started = time.perf_counter()
    result = store.get_or_build(
        hwr.BuildRequest(identity), theirs, validation=level, deadline=time.monotonic() + 3600
    )
    seconds = time.perf_counter() - started
    if result.lease is None:
        raise RuntimeError(f"nothing was built: {result}")
    result.lease.close()
    failure = store.cleanup(identity)
    if failure is not None:
        raise RuntimeError(f"the artifact stays: {failure}")
    return seconds


def removed(status: CleanupStatus) -> None:
    """Check that an artifact is gone."""
    if status is not CleanupStatus.REMOVED:
        raise RuntimeError(f"the artifact stays: {status}")


if __name__ == "__main__":
    main()
