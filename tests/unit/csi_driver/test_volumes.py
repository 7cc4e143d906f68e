"""Publishing and unpublishing, whoever of agent and kernel fails when."""

from __future__ import annotations

import errno

import pytest

from csi_world import (
    CONTENT,
    HANDLE,
    KEY,
    KUBELET,
    TARGET,
    VOLUME_ID,
    FakeAgent,
    FakeMounter,
    away,
    volumes_of,
)
from weightlease.errors import FailureCode, WeightLeaseError
from weightlease.wire import PublishVolumeParams, VolumeContent
from weightlease_csi_driver.mounts import Bind
from weightlease_csi_driver.volumes import Busy

PLAIN = PublishVolumeParams(
    VOLUME_ID, TARGET.path(KUBELET), "team-a", "server-0", "uid-0", "default"
)
WITH_FILES = PublishVolumeParams(
    VOLUME_ID, TARGET.path(KUBELET), "team-a", "server-0", "uid-0", "default", "minilm"
)
SOCKET = Bind("/volumes", (HANDLE, "pod"))


def test_a_volume_shows_the_pods_folder() -> None:
    mounter = FakeMounter()
    volumes_of(FakeAgent(), mounter).publish(PLAIN, TARGET)
    assert mounter.shown == {TARGET: [SOCKET]}


def test_an_artifacts_files_are_shown_from_the_stores_folders() -> None:
    mounter = FakeMounter()
    volumes_of(FakeAgent(CONTENT), mounter).publish(WITH_FILES, TARGET)
    payloads = ("disk", "team-a", "artifacts", KEY)
    assets = ("disk", "team-a", "assets", KEY)
    assert mounter.shown[TARGET] == [
        SOCKET,
        Bind("/store", payloads, (".content", "payloads")),
        Bind("/store", assets, (".content", "assets")),
    ]


def test_an_artifact_without_assets_shows_none() -> None:
    mounter = FakeMounter()
    content = VolumeContent("memory", "team-a", KEY, assets=False)
    volumes_of(FakeAgent(content), mounter).publish(WITH_FILES, TARGET)
    assert [bind.place for bind in mounter.shown[TARGET]] == [(), (".content", "payloads")]


@pytest.mark.parametrize(
    "agent",
    [
        FakeAgent(handle="../x"),
        FakeAgent(handle=""),
        FakeAgent(VolumeContent("..", "team-a", KEY, assets=False)),
        FakeAgent(VolumeContent("disk", "..", KEY, assets=False)),
        FakeAgent(VolumeContent("disk", "", KEY, assets=False)),
        FakeAgent(VolumeContent("disk", "team-a", "../../etc", assets=False)),
    ],
)
def test_an_answer_that_would_lead_elsewhere_mounts_nothing(agent: FakeAgent) -> None:
    mounter = FakeMounter()
    with pytest.raises(WeightLeaseError) as refused:
        volumes_of(agent, mounter).publish(WITH_FILES, TARGET)
    assert refused.value.failure.code is FailureCode.PROTOCOL_ERROR
    assert mounter.shown == {}


def test_nothing_is_mounted_while_the_agent_refuses() -> None:
    mounter = FakeMounter()
    with pytest.raises(WeightLeaseError):
        volumes_of(FakeAgent(failure=away()), mounter).publish(PLAIN, TARGET)
    assert mounter.shown == {}


def test_a_mount_that_failed_is_made_by_the_next_attempt() -> None:
    agent, mounter = FakeAgent(), FakeMounter(error=OSError(errno.EPERM, "no"))
    volumes = volumes_of(agent, mounter)
    with pytest.raises(OSError, match="no"):
        volumes.publish(PLAIN, TARGET)
    mounter.error = None
    volumes.publish(PLAIN, TARGET)
    assert mounter.shown == {TARGET: [SOCKET]}


def test_unpublish_hides_and_ends_and_may_be_repeated() -> None:
    agent, mounter = FakeAgent(), FakeMounter()
    volumes = volumes_of(agent, mounter)
    volumes.publish(PLAIN, TARGET)
    for _ in range(2):
        volumes.unpublish(VOLUME_ID, TARGET)
        assert (mounter.shown, agent.made) == ({}, {})


def test_a_pod_ends_while_the_agent_is_away_and_the_agent_is_told_later() -> None:
    agent, mounter = FakeAgent(), FakeMounter()
    volumes = volumes_of(agent, mounter)
    volumes.publish(PLAIN, TARGET)
    agent.failure = away()
    volumes.unpublish(VOLUME_ID, TARGET)
    assert mounter.shown == {}
    with pytest.raises(WeightLeaseError):
        volumes.end_forgotten()
    agent.failure = None
    assert volumes.end_forgotten() == [VOLUME_ID]
    assert agent.made == {}


def test_a_volume_that_cannot_be_hidden_is_not_ended() -> None:
    agent, mounter = FakeAgent(), FakeMounter()
    volumes = volumes_of(agent, mounter)
    volumes.publish(PLAIN, TARGET)
    mounter.error = OSError(errno.EBUSY, "busy")
    with pytest.raises(OSError, match="busy"):
        volumes.unpublish(VOLUME_ID, TARGET)
    assert set(agent.made) == {VOLUME_ID}


def test_what_is_still_shown_is_not_forgotten() -> None:
    agent, mounter = FakeAgent(), FakeMounter()
    volumes = volumes_of(agent, mounter)
    volumes.publish(PLAIN, TARGET)
    assert volumes.end_forgotten() == []
    assert set(agent.made) == {VOLUME_ID}


def test_a_target_that_no_kubelet_has_is_left_alone() -> None:
    agent, mounter = FakeAgent(), FakeMounter()
    agent.made["x"] = PublishVolumeParams("x", "/etc", "team-a", "server-0", "uid-0")
    assert volumes_of(agent, mounter).end_forgotten() == []


def test_two_calls_for_one_volume_do_not_meet() -> None:
    agent = FakeAgent()

    class Meanwhile(FakeMounter):
        def hide(self, target: object) -> None:
            with pytest.raises(Busy):
                volumes.publish(PLAIN, TARGET)
            assert volumes.end_forgotten() == []

    volumes = volumes_of(agent, Meanwhile())
    volumes.publish(PLAIN, TARGET)
    volumes.unpublish(VOLUME_ID, TARGET)
