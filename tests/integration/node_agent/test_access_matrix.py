"""Every cell of the access matrix, asked of a real agent."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from access_matrix import CELLS, MATRIX, NO, YES, What, Who
from agent_process import QUICK, AgentProcess, wait_until
from cluster_node import JOB_POD, cluster_environment
from fake_api_server import FakeApiServer
from raw_peer import RawPeer, RefusedError
from small_artifact import identity
from weightlease import wire
from weightlease.api.weight_node import WeightNodeStatus

NAMESPACE = "team-a"
AWAY = {Who.POD_AWAY, Who.JOB_AWAY, Who.NEW_AWAY}
BARE = {Who.UID_ALLOWED, Who.UID_OTHER}
OTHER_UID = 65534


class Node:
    """An agent in a cluster and one on a bare host, each with the artifact of the matrix."""

    def __init__(self, folder: Path, api: FakeApiServer, payload: bytes) -> None:
        self.api, self.payload = api, payload
        self.agent = AgentProcess(
            folder / "cluster",
            environment=cluster_environment(api)
            | {
                "WEIGHTLEASE_INTERVALS__STATUS": "1",
                "WEIGHTLEASE_UNMANAGED": '{"research": {"quota": "1Mi", "expirySeconds": 3600}}',
            },
            uid_mode=False,
        )
        self.bare = AgentProcess(folder / "bare", environment=QUICK)
        self.tokens = {
            Who.POD: api.add_pod("server-0"),
            Who.JOB: api.add_pod(JOB_POD),
            Who.GRANTED: api.add_pod("reader", "team-c"),
            Who.PUBLISHER: api.add_pod("trainer-0", "team-b", account="trainer"),
            Who.STRANGER: api.add_pod("spy", "team-d"),
            Who.OPENED: api.add_pod("notebook", "research"),
            Who.OTHER_NODE: api.add_pod("far", node="node-2"),
            Who.OTHER_AUDIENCE: api.add_pod("vault", audience="vault"),
            Who.NEW_AWAY: api.add_pod("server-1"),
            Who.FORGED: "a.b.forged",
            Who.NO_TOKEN: "",
        }
        self.tokens |= {
            Who.POD_AWAY: self.tokens[Who.POD],
            Who.JOB_AWAY: self.tokens[Who.JOB],
        }

    @contextmanager
    def running(self) -> Iterator[None]:
        with self.agent, self.bare:
            self.api.set_spec(self._entry())
            wait_until(lambda: self.agent.get("/readyz")[0] == 200)
            with self.connect(Who.JOB) as job:
                made = job.publish(identity(), self.payload)
            self.api.set_spec(self._entry(made))
            wait_until(self._spec_is_seen)
            yield

    def connect(self, who: Who) -> RawPeer:
        if who not in BARE:
            return RawPeer(self.agent.socket, token=self.tokens[who])
        with as_user(OTHER_UID if who is Who.UID_OTHER else 0, self.bare.socket.parent):
            return RawPeer(Path(self.bare.socket.name))

    def restore(self, who: Who) -> None:
        """The artifact of the matrix is there, whatever was asked before."""
        if who in BARE:
            with self.bare.peer() as peer:
                params = begin_params(self.payload, NAMESPACE)
                if peer.call("begin_publication", params, wire.BeginResult).status == "build":
                    peer.stream("model.safetensors", self.payload)
                    peer.finalize(identity())

    def _entry(self, made: wire.FinalizeResult | None = None) -> dict[str, object]:
        return {
            "id": f"{NAMESPACE}/minilm:model@",
            "namespace": NAMESPACE,
            "name": "minilm",
            "component": "model",
            "generation": 1,
            "storageClass": "disk",
            "job": "warm-minilm",
            "key": made.key if made else "",
            "manifestSha256": made.manifest_sha256 if made else "",
            "accessNamespaces": ["team-c"],
            "publishers": ["team-b/trainer"],
        }

    def _spec_is_seen(self) -> bool:
        statuses = self.api.statuses
        return bool(statuses) and (
            WeightNodeStatus.model_validate(statuses[-1]).observed_generation == 2
        )


@contextmanager
def as_user(uid: int, folder: Path) -> Iterator[None]:
    """Connect as `uid` from inside `folder`, whose parents are the test user's alone."""
    before = Path.cwd()
    os.chdir(folder)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.chdir(before)


def begin_params(payload: bytes, namespace: str, model: str = "test/model") -> wire.BeginParams:
    return wire.BeginParams(identity(model).to_dict(), len(payload), 0.0, "disk", namespace)


def ask(peer: RawPeer, what: What, payload: bytes) -> str:
    """`yes`, `no`, or the code of the failure."""

    def lease(reference: str = "", key: str = "") -> None:
        granted, fds = peer.acquire(key, reference)
        peer.release(granted, fds)

    def begin(namespace: str, model: str = "test/model") -> None:
        params = begin_params(payload, namespace, model)
        if peer.call("begin_publication", params, wire.BeginResult).status == "build":
            peer.call("abort", wire.Empty(), wire.Empty)

    def see() -> None:
        if not peer.inspect(identity().key):
            raise LookupError

    requests: dict[What, Callable[[], object]] = {
        What.LEASE_NAME: lambda: lease(reference=f"{NAMESPACE}/minilm"),
        What.LEASE_KEY: lambda: lease(key=identity().key),
        What.SEE: see,
        What.PUBLISH: lambda: begin(NAMESPACE),
        What.PUBLISH_THERE: lambda: begin(NAMESPACE, "another"),
        What.PUBLISH_OWN: lambda: begin("", "another"),
        What.REMOVE: lambda: peer.cleanup(identity().key),
    }
    try:
        requests[what]()
    except RefusedError as refused:
        return str(refused.failure.code)
    except LookupError:
        return NO
    return YES


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, payload: bytes) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("node")
    with FakeApiServer(folder) as api:
        made = Node(folder, api, payload)
        with made.running():
            yield made


@pytest.fixture
def away(node: Node) -> Iterator[Callable[[], None]]:
    """Takes the API server away until the test ends, once the peers that it knows are known."""

    def leave() -> None:
        for who in (Who.POD, Who.JOB):
            node.connect(who).close()
        node.api.go_away()
        wait_until(lambda: node.agent.metric("weightlease_agent_spec_synced") == 0)
        stack.callback(wait_until, lambda: node.agent.get("/readyz")[0] == 200)
        stack.callback(node.api.come_back)

    with contextlib.ExitStack() as stack:
        yield leave


@pytest.mark.parametrize("who", MATRIX)
def test_each_peer_may_do_exactly_what_the_matrix_says(
    node: Node, away: Callable[[], None], who: Who, payload: bytes
) -> None:
    if who in AWAY:
        away()
    found = {}
    for what in What:
        node.restore(who)
        try:
            with node.connect(who) as peer:
                found[what] = ask(peer, what, payload)
        except RefusedError as refused:
            found[what] = str(refused.failure.code)
    assert found == MATRIX[who]


def test_the_matrix_has_every_cell() -> None:
    assert len(CELLS) == len(Who) * len(What)
