"""The watch of the node's spec, against answers that end at once and in every way."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import fake_time
from weightlease_node_agent.cluster import NodeEvent, NodeSeen, WatchLost
from weightlease_node_agent.gateway import KubernetesCluster

NODE = {"metadata": {"name": "node-1", "resourceVersion": "7", "generation": 1}, "spec": {}}
EXPIRED = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
MANY = 20


class Answer:
    """A watch's response: its status, and its events, after which it ends."""

    def __init__(self, status: int, events: tuple[dict[str, Any], ...] = ()) -> None:
        self.status = status
        self.content = self
        self._events = events

    def raise_for_status(self) -> None:
        pass

    def release(self) -> None:
        pass

    async def iter_any(self) -> AsyncIterator[bytes]:
        for event in self._events:
            yield json.dumps(event).encode() + b"\n"


class Objects:
    """The API: each watch gets the next answer; says when lists and watches were asked for."""

    def __init__(self, answers: Iterator[Answer]) -> None:
        self.lists: list[float] = []
        self.watches: list[float] = []
        self._answers = answers

    async def list_cluster_custom_object(self, *_: object, **__: object) -> dict[str, Any]:
        self.lists.append(asyncio.get_running_loop().time())
        return {"metadata": {"resourceVersion": "7"}, "items": [NODE]}

    async def list_cluster_custom_object_without_preload_content(
        self, *_: object, **__: object
    ) -> Answer:
        self.watches.append(asyncio.get_running_loop().time())
        if len(self.lists) + len(self.watches) > MANY:
            raise Enough
        return next(self._answers)


class Enough(Exception):
    """The test has seen what it wants to see."""


def watched(answers: Iterator[Answer]) -> tuple[Objects, list[NodeEvent]]:
    """What is asked of the API, and what the agent hears, until it has asked often enough."""
    objects, heard = Objects(answers), list[NodeEvent]()
    cluster = KubernetesCluster.__new__(KubernetesCluster)
    cluster._objects = objects

    async def follow() -> None:
        try:
            async for event in cluster.watch_node("node-1"):
                heard.append(event)
        except Enough:
            pass

    fake_time.run(follow())
    return objects, heard


def always(*answer: Any) -> Iterator[Answer]:
    while True:
        yield Answer(*answer)


def test_a_watch_that_expired_by_its_status_or_in_its_stream_is_listed_anew() -> None:
    for answer in ((410,), (200, (EXPIRED,))):
        objects, heard = watched(always(*answer))
        assert abs(len(objects.lists) - len(objects.watches)) <= 1
        assert all(isinstance(event, NodeSeen) for event in heard)
        assert all(later - one >= 0.5 for one, later in pairs(objects.lists))


def test_a_watch_that_ends_at_once_with_nothing_is_not_asked_for_in_a_hot_loop() -> None:
    objects, heard = watched(always(200))
    assert all(later - one >= 0.5 for one, later in pairs(objects.watches))
    assert not any(isinstance(event, WatchLost) for event in heard)


def pairs(times: list[float]) -> Iterator[tuple[float, float]]:
    assert len(times) > 2
    return itertools.pairwise(times)
