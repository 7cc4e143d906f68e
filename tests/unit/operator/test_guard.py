"""The release goes when no pod and no artifact needs it any more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from weightlease_operator import guard
from weightlease_operator.api_errors import Unavailable
from weightlease_operator.kinds import Kind

OURS = {"name": "agent", "csi": {"driver": "csi.weightlease.io"}}
OTHERS = [{"name": "other", "csi": {"driver": "csi.example.com"}}, {"name": "tmp", "emptyDir": {}}]


def pod(
    name: str = "server-0", *, volumes: Any = None, node: str = "n", phase: str = "Running"
) -> Any:
    return {
        "metadata": {"namespace": "team", "name": name},
        "spec": {"nodeName": node, "volumes": [OURS] if volumes is None else volumes},
        "status": {"phase": phase},
    }


@pytest.mark.parametrize(
    ("held", "holds"),
    [
        (pod(), True),
        (pod(volumes=[*OTHERS, OURS]), True),
        (pod(phase="Pending"), True),
        (pod(volumes=OTHERS), False),
        (pod(node=""), False),
        (pod(phase="Succeeded"), False),
        (pod(phase="Failed"), False),
        ({"metadata": {}, "spec": {}}, False),
        ({"metadata": {}, "spec": {"nodeName": "n", "volumes": None}}, False),
    ],
)
def test_a_pod_is_in_the_way_while_its_volume_is_mounted(held: Any, holds: bool) -> None:
    assert guard.has_volume(held) is holds


class Cluster:
    """A gateway that knows some objects, or none for want of an API server."""

    def __init__(self, objects: dict[str, list[Any]] | None) -> None:
        self.objects = objects

    async def each(self, kind: Kind) -> AsyncIterator[Any]:
        if self.objects is None:
            raise Unavailable("away")
        for each in self.objects[kind.plural]:
            yield each


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def ask(pods: list[Any] | None, artifacts: list[Any] | None = None) -> tuple[int, str]:
        objects = None if pods is None else {"pods": pods, "weightartifacts": artifacts or []}

        @asynccontextmanager
        async def connect(*_: object) -> AsyncIterator[Cluster]:
            yield Cluster(objects)

        monkeypatch.setattr(guard, "connect", connect)
        status = guard.main()
        return status, capsys.readouterr().err

    return ask


def test_the_release_may_go_when_nobody_needs_it(answer: Any) -> None:
    assert answer([pod(volumes=OTHERS)]) == (0, "")


def test_the_refusal_names_the_pods_and_the_way_out(answer: Any) -> None:
    status, text = answer([pod(f"server-{n:02}") for n in reversed(range(12))])
    assert status == 1
    assert "team/server-00, team/server-01" in text
    assert "server-11" not in text
    assert "(12 in all)" in text
    assert "--no-hooks" in text


def test_an_artifact_is_in_the_way_because_only_the_operator_ends_its_finalizer(
    answer: Any,
) -> None:
    status, text = answer([], [{"metadata": {"namespace": "team", "name": "minilm"}}])
    assert status == 1
    assert "team/minilm (1 in all)" in text
    assert "pods" not in text


def test_an_api_server_that_is_away_is_no_permission(answer: Any) -> None:
    status, text = answer(None)
    assert (status, "can't be listed" in text) == (2, True)
