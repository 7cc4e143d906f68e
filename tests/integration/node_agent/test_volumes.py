"""Volumes of a real agent, asked for as the CSI driver asks."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import weightlease
from agent_process import AgentProcess, wait_until
from cluster_node import JOB_POD, entry
from fake_api_server import FakeApiServer
from raw_peer import RawPeer, RefusedError
from small_artifact import identity
from volume_world import ASSETS, agent_with_volumes, publish
from weightlease import wire
from weightlease.errors import Failure, FailureCode, WeightLeaseError

VOLUME = wire.PublishVolumeParams(
    volume_id="csi-" + "0" * 64,
    target="/var/lib/kubelet/pods/uid-0/volumes/kubernetes.io~csi/weights/mount",
    namespace="team-a",
    pod="server-0",
    pod_uid="uid-0",
    service_account="default",
)
WITH_FILES = msgspec.structs.replace(VOLUME, artifact="minilm")


@pytest.fixture
def volumes() -> Iterator[Path]:
    """A short path: a socket's has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="wl-") as folder:
        yield Path(folder)


@pytest.fixture
def agent(tmp_path: Path, api: FakeApiServer, volumes: Path) -> Iterator[AgentProcess]:
    with agent_with_volumes(tmp_path, api, volumes) as started:
        yield started


@pytest.fixture
def key(agent: AgentProcess, api: FakeApiServer, payload: bytes) -> str:
    """A published artifact that the spec names."""
    return publish(agent, api, payload)


def ask(volumes: Path, volume: wire.PublishVolumeParams = VOLUME) -> wire.PublishVolumeResult:
    with RawPeer(volumes / "driver.sock") as driver:
        return driver.call("publish_volume", volume, wire.PublishVolumeResult)


def end(volumes: Path, volume: wire.PublishVolumeParams = VOLUME) -> None:
    params = wire.UnpublishVolumeParams(volume.volume_id)
    with RawPeer(volumes / "driver.sock") as driver:
        driver.call("unpublish_volume", params, wire.Empty)


def listed(volumes: Path) -> list[str]:
    with RawPeer(volumes / "driver.sock") as driver:
        result = driver.call("list_volumes", wire.Empty(), wire.ListVolumesResult)
    return [each.volume_id for each in result.volumes]


def refusal(volumes: Path, volume: wire.PublishVolumeParams) -> Failure:
    with pytest.raises(RefusedError) as refused:
        ask(volumes, volume)
    return refused.value.failure


def is_granted(volumes: Path, volume: wire.PublishVolumeParams) -> bool:
    try:
        ask(volumes, volume)
    except RefusedError:
        return False
    return True


def pod_folder(volumes: Path, made: wire.PublishVolumeResult) -> Path:
    return volumes / made.handle / "pod"


def wait_for_a_sweep(agent: AgentProcess) -> None:
    """A sweep takes a dead builder's leftovers, and what nothing wants after them."""
    leftover = agent.domain("team-a") / "tmp" / f"{'f' * 64}.1.{'0' * 32}"
    leftover.mkdir()
    wait_until(lambda: not leftover.exists())


def leases_of(agent: AgentProcess) -> list[str]:
    return sorted(os.listdir(agent.domain("team-a") / "leases"))


def test_whoever_connects_to_a_pods_socket_is_that_pod(agent: AgentProcess, volumes: Path) -> None:
    made = ask(volumes)
    with RawPeer(pod_folder(volumes, made) / "agent.sock") as peer:
        assert peer.greeting is not None
        assert peer.greeting.peer == "team-a/server-0"
        assert peer.greeting.namespace == "team-a"
    assert made.content is None
    assert os.listdir(pod_folder(volumes, made)) == ["agent.sock"]


def test_a_token_of_somebody_else_changes_nothing_at_a_pods_socket(
    agent: AgentProcess, api: FakeApiServer, volumes: Path
) -> None:
    made = ask(volumes)
    other = api.add_pod("server-0", "team-b")
    with RawPeer(pod_folder(volumes, made) / "agent.sock", token=other) as peer:
        assert peer.greeting is not None
        assert peer.greeting.namespace == "team-a"
    assert api.reviews == 0


def test_the_client_leases_through_a_volume_without_a_token(
    agent: AgentProcess, key: str, volumes: Path, payload: bytes
) -> None:
    made = ask(volumes)
    socket = pod_folder(volumes, made) / "agent.sock"
    with weightlease.connect(str(socket), token_file="") as store:
        with store.acquire("minilm") as lease:
            assert lease.manifest.artifact_key == key
        with pytest.raises(WeightLeaseError, match="team-b"):
            store.acquire("team-b/minilm")


def test_a_job_publishes_through_its_volume(
    agent: AgentProcess, api: FakeApiServer, volumes: Path, payload: bytes
) -> None:
    api.set_spec(entry())
    wait_until(lambda: agent.get("/readyz")[0] == 200)
    made = ask(volumes, msgspec.structs.replace(VOLUME, pod=JOB_POD))
    with RawPeer(pod_folder(volumes, made) / "agent.sock") as job:
        assert job.publish(identity(), payload).key == identity().key


def test_a_pod_that_is_no_jobs_may_not_publish_through_its_volume(
    agent: AgentProcess, api: FakeApiServer, volumes: Path
) -> None:
    api.set_spec(entry())
    wait_until(lambda: agent.get("/readyz")[0] == 200)
    made = ask(volumes)
    with (
        RawPeer(pod_folder(volumes, made) / "agent.sock") as peer,
        pytest.raises(RefusedError) as refused,
    ):
        peer.begin(identity(), 10)
    assert refused.value.failure.code is FailureCode.PRODUCER_UNAVAILABLE


def test_an_artifacts_tree_has_the_sources_names_and_leads_to_the_stores_folders(
    agent: AgentProcess, key: str, volumes: Path
) -> None:
    made = ask(volumes, WITH_FILES)
    assert made.content == wire.VolumeContent("disk", "team-a", key, assets=True)
    pod = pod_folder(volumes, made)
    links = {
        str(path.relative_to(pod / "files")): os.path.normpath(
            os.path.join(path.parent.relative_to(pod), os.readlink(path))
        )
        for path in sorted((pod / "files").rglob("*"))
        if path.is_symlink()
    }
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in ASSETS.items()}
    assert links == {
        "config.json": f".content/assets/{digests['config.json']}",
        "model.safetensors": ".content/payloads/model.safetensors",
        "tokenizer/vocab.txt": f".content/assets/{digests['tokenizer/vocab.txt']}",
    }
    assert all(not os.path.isabs(os.readlink(pod / "files" / name)) for name in links)


def test_a_volume_keeps_its_artifact_through_an_agents_death_until_it_is_unpublished(
    agent: AgentProcess, api: FakeApiServer, key: str, volumes: Path
) -> None:
    ask(volumes, WITH_FILES)
    (name,) = leases_of(agent)
    artifact = agent.domain("team-a") / "artifacts" / key
    agent.kill()
    assert leases_of(agent) == [name]
    agent.start()
    # Nothing wants the artifact any more but the volume.
    api.set_spec()
    wait_until(lambda: agent.get("/readyz")[0] == 200)
    for _ in range(2):
        wait_for_a_sweep(agent)
    assert artifact.exists()
    assert leases_of(agent) == [name]
    end(volumes, WITH_FILES)
    wait_until(lambda: not artifact.exists())
    assert leases_of(agent) == []


def test_an_agents_successor_binds_each_socket_again_in_place(
    agent: AgentProcess, key: str, volumes: Path
) -> None:
    made = ask(volumes, WITH_FILES)
    folder = os.stat(pod_folder(volumes, made))
    agent.kill()
    agent.start()
    assert listed(volumes) == [VOLUME.volume_id]
    with RawPeer(pod_folder(volumes, made) / "agent.sock") as peer:
        assert peer.greeting is not None
        assert peer.greeting.peer == "team-a/server-0"
    # the pod's mount shows this very folder
    assert os.path.samestat(os.stat(pod_folder(volumes, made)), folder)


def test_publishing_again_finds_the_same_volume_and_one_lease(
    agent: AgentProcess, key: str, volumes: Path
) -> None:
    first = ask(volumes, WITH_FILES)
    inode = os.stat(pod_folder(volumes, first)).st_ino
    assert ask(volumes, WITH_FILES) == first
    assert os.stat(pod_folder(volumes, first)).st_ino == inode
    assert len(leases_of(agent)) == 1


def test_a_volume_id_is_never_given_to_a_second_pod(agent: AgentProcess, volumes: Path) -> None:
    ask(volumes)
    other = msgspec.structs.replace(VOLUME, pod="thief", pod_uid="uid-9")
    assert refusal(volumes, other).code is FailureCode.INVALID_CONFIG


def test_an_artifact_that_is_not_ready_is_a_retryable_miss_that_names_it_and_the_node(
    agent: AgentProcess, api: FakeApiServer, volumes: Path
) -> None:
    api.set_spec(entry())
    wait_until(lambda: agent.get("/readyz")[0] == 200)
    failure = refusal(volumes, WITH_FILES)
    assert (failure.code, failure.retryable) == (FailureCode.LOCAL_MISS, True)
    assert "artifact minilm is not ready on node node-1" in failure.message
    assert listed(volumes) == []
    assert os.listdir(volumes) == ["driver.sock"]


def test_another_namespaces_artifact_is_refused(
    agent: AgentProcess, key: str, volumes: Path
) -> None:
    stranger = msgspec.structs.replace(WITH_FILES, namespace="team-b", artifact="team-a/minilm")
    assert refusal(volumes, stranger).code is FailureCode.PERMISSION_DENIED
    assert leases_of(agent) == []


def test_a_namespace_that_is_granted_access_gets_a_volume_of_the_owners_files(
    agent: AgentProcess, api: FakeApiServer, key: str, volumes: Path
) -> None:
    guest = msgspec.structs.replace(WITH_FILES, namespace="team-b", artifact="team-a/minilm")
    assert refusal(volumes, guest).code is FailureCode.PERMISSION_DENIED
    api.set_spec(entry(key=key, accessNamespaces=["team-b"]))
    wait_until(lambda: is_granted(volumes, guest))
    made = ask(volumes, guest)
    assert made.content == wire.VolumeContent("disk", "team-a", key, assets=True)
    (lease,) = leases_of(agent)
    assert '"namespace":"team-b"' in (agent.domain("team-a") / "leases" / lease).read_text()


def test_an_account_that_may_publish_does_so_through_its_volume(
    agent: AgentProcess, api: FakeApiServer, volumes: Path, payload: bytes
) -> None:
    api.set_spec(entry(key=identity().key, publishers=["team-a/builder"]))
    wait_until(lambda: agent.get("/readyz")[0] == 200)
    made = ask(volumes, msgspec.structs.replace(VOLUME, service_account="builder"))
    with RawPeer(pod_folder(volumes, made) / "agent.sock") as peer:
        begun = peer.begin(identity(), len(payload))
    assert begun.status is wire.PublicationStatus.BUILD


def test_unpublishing_is_idempotent_and_leaves_nothing(
    agent: AgentProcess, key: str, volumes: Path
) -> None:
    ask(volumes, WITH_FILES)
    end(volumes)
    end(volumes)
    assert os.listdir(volumes) == ["driver.sock"]
    assert leases_of(agent) == []
    assert listed(volumes) == []


def test_what_a_crash_left_without_a_record_goes_with_its_lease(
    agent: AgentProcess, key: str, volumes: Path
) -> None:
    made = ask(volumes, WITH_FILES)
    agent.kill()
    (volumes / made.handle / "volume.json").unlink()
    agent.start()
    assert sorted(os.listdir(volumes)) == ["driver.sock"]
    assert leases_of(agent) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("volume_id", "../../etc"),
        ("volume_id", ""),
        ("target", "relative"),
        ("namespace", "Team/a"),
        ("pod", "a b"),
        ("pod_uid", "../x"),
        ("service_account", "-"),
        ("artifact", "../minilm"),
    ],
)
def test_what_no_kubelet_sends_is_refused_and_named(
    agent: AgentProcess, volumes: Path, field: str, value: str
) -> None:
    failure = refusal(volumes, msgspec.structs.replace(VOLUME, **{field: value}))
    assert failure.code is FailureCode.INVALID_CONFIG
    assert field in failure.message
    assert os.listdir(volumes) == ["driver.sock"]


def test_the_drivers_socket_serves_volumes_alone_and_no_other_serves_them(
    agent: AgentProcess, api: FakeApiServer, volumes: Path
) -> None:
    made = ask(volumes)
    with (
        RawPeer(volumes / "driver.sock") as driver,
        pytest.raises(RefusedError, match="cleanup is not served"),
    ):
        driver.cleanup("0" * 64)
    with (
        RawPeer(volumes / "driver.sock") as driver,
        pytest.raises(RefusedError, match="begin_publication is not served"),
    ):
        driver.begin(identity(), 10)
    others = {"pod": pod_folder(volumes, made) / "agent.sock", "all": agent.socket}
    for socket in others.values():
        token = api.add_pod("server-1")
        with (
            RawPeer(socket, token=token) as peer,
            pytest.raises(RefusedError, match="list_volumes is not served"),
        ):
            peer.call("list_volumes", wire.Empty(), wire.ListVolumesResult)
