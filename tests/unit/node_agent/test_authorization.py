"""Who may lease, publish and remove."""

from __future__ import annotations

import msgspec
import pytest

from node_agent_world import ENTRY_ID, KEY, entry, pod_peer, uid_peer
from small_artifact import identity
from weightlease.api.weight_node import WantedArtifact
from weightlease.errors import FailureCode, WeightLeaseError
from weightlease.identity import WeightArtifactIdentity
from weightlease.names import StorageClass
from weightlease_node_agent.authorization import (
    authorize_publication,
    namespace_of,
    rank_of,
    require_administrator,
    require_current,
)
from weightlease_node_agent.peers import Peer

DISK = StorageClass.DISK


def ranked(rank: int) -> WeightArtifactIdentity:
    base = identity()
    layout = msgspec.structs.replace(base.layout, tensor_parallel_size=2, tensor_parallel_rank=rank)
    return msgspec.structs.replace(base, layout=layout)


def refusal(peer: Peer, *entries: WantedArtifact, storage: StorageClass = DISK) -> FailureCode:
    with pytest.raises(WeightLeaseError) as refused:
        authorize_publication(peer, identity(), storage, "", entries)
    return refused.value.failure.code


def test_a_pod_of_the_named_job_may_publish_for_its_entry() -> None:
    grant = authorize_publication(pod_peer(), identity(), DISK, "", [entry()])
    assert (grant.namespace, grant.entry) == ("team-a", entry())


@pytest.mark.parametrize(
    "pod",
    [
        "warm-minilm",
        "warm-minilm-",
        "warm-minilm-x7k2",
        "warm-minilm-x7k2pp",
        "warm-minilm-X7K2P",
        "warm-minilm-2-x7k2p",
        "x-warm-minilm-x7k2p",
        "warm-minilm-a-b-c",
    ],
)
def test_a_pod_that_only_resembles_the_jobs_may_not(pod: str) -> None:
    assert refusal(pod_peer(pod), entry()) is FailureCode.PRODUCER_UNAVAILABLE


def test_the_same_pod_name_in_another_namespace_may_not() -> None:
    stranger = pod_peer(namespace="team-b")
    assert refusal(stranger, entry()) is FailureCode.PRODUCER_UNAVAILABLE


def test_an_entry_without_a_job_grants_nothing() -> None:
    assert refusal(pod_peer("-x7k2p"), entry(job="")) is FailureCode.PRODUCER_UNAVAILABLE


def test_an_unconfirmed_token_may_not_publish() -> None:
    peer = pod_peer(may_publish=False)
    assert refusal(peer, entry()) is FailureCode.PRODUCER_UNAVAILABLE


def test_a_fixed_key_admits_that_key_alone() -> None:
    assert refusal(pod_peer(), entry(key=KEY)) is FailureCode.IDENTITY_MISMATCH
    fixed = entry(key=identity().key)
    assert authorize_publication(pod_peer(), identity(), DISK, "", [fixed]).entry == fixed


def test_another_component_is_a_mismatch() -> None:
    assert refusal(pod_peer(), entry(component="vae")) is FailureCode.IDENTITY_MISMATCH


def test_another_storage_class_is_a_mismatch() -> None:
    refused = refusal(pod_peer(), entry(), storage=StorageClass.MEMORY)
    assert refused is FailureCode.STORAGE_CLASS_MISMATCH


def test_each_rank_is_matched_with_its_coordinates() -> None:
    entries = [
        entry(id=f"{ENTRY_ID}tp{rank}", coordinates=f"tp{rank}", key=ranked(rank).key)
        for rank in range(2)
    ]
    for rank in range(2):
        grant = authorize_publication(pod_peer(), ranked(rank), DISK, "", entries)
        assert grant.entry == entries[rank]


@pytest.mark.parametrize(
    ("coordinates", "rank"), [("", 0), ("tp3", 3), ("pp0.tp12", 12), ("ep4", 0)]
)
def test_ranks_are_read_from_coordinates(coordinates: str, rank: int) -> None:
    assert rank_of(coordinates) == rank


def test_a_uid_of_a_bare_host_may_publish_anything_in_any_namespace() -> None:
    grant = authorize_publication(uid_peer(), identity(), DISK, "models", [])
    assert (grant.namespace, grant.entry) == ("models", None)
    assert namespace_of(uid_peer(), "") == "default"


@pytest.mark.parametrize("name", ["..", "a/b", "UPPER", "", "-a", "a" * 64])
def test_a_namespace_is_a_dns_label_or_refused(name: str) -> None:
    if name:
        with pytest.raises(WeightLeaseError):
            namespace_of(uid_peer(), name)


def test_a_pod_is_confined_to_its_namespace() -> None:
    assert namespace_of(pod_peer(), "") == namespace_of(pod_peer(), "team-a") == "team-a"
    with pytest.raises(WeightLeaseError) as refused:
        namespace_of(pod_peer(), "team-b")
    assert refused.value.failure.code is FailureCode.PERMISSION_DENIED


def test_pods_do_not_remove_artifacts() -> None:
    require_administrator(uid_peer(), "cleanup")
    with pytest.raises(WeightLeaseError):
        require_administrator(pod_peer(), "cleanup")


def test_an_expired_token_serves_no_more() -> None:
    peer = pod_peer(expires_at=100.0)
    require_current(peer, 99.0)
    with pytest.raises(WeightLeaseError) as refused:
        require_current(peer, 100.0)
    assert refused.value.failure.code is FailureCode.UNAUTHENTICATED
    assert refused.value.failure.retryable
