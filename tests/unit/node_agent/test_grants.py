"""Explicit grants: across namespaces, to publishers, and to namespaces opened for any key."""

from __future__ import annotations

import pytest

from node_agent_world import KEY, entry, pod_peer, uid_peer
from small_artifact import identity
from weightlease.api.weight_node import WantedArtifact
from weightlease.errors import FailureCode, WeightLeaseError
from weightlease.names import ArtifactReference, StorageClass, parse_reference
from weightlease_node_agent.authorization import (
    PublicationGrant,
    authorize_publication,
    authorize_reference,
    granted_entries,
)
from weightlease_node_agent.peers import Peer

DISK, MEMORY = StorageClass.DISK, StorageClass.MEMORY
OWN_KEY = identity().key
SHARED = entry(key=OWN_KEY, access_namespaces=["team-b"], publishers=["team-c/trainer"])


def resolved(peer: Peer, text: str, *entries: WantedArtifact) -> WantedArtifact:
    return authorize_reference(peer, parse_reference(text), entries)


def refused(peer: Peer, text: str, *entries: WantedArtifact) -> FailureCode:
    with pytest.raises(WeightLeaseError) as error:
        resolved(peer, text, *entries)
    return error.value.failure.code


def publish(
    peer: Peer,
    *entries: WantedArtifact,
    namespace: str = "",
    storage: StorageClass = DISK,
    opened: frozenset[str] = frozenset(),
) -> PublicationGrant:
    return authorize_publication(peer, identity(), storage, namespace, entries, opened)


def refused_publication(peer: Peer, *entries: WantedArtifact, namespace: str = "") -> FailureCode:
    with pytest.raises(WeightLeaseError) as error:
        publish(peer, *entries, namespace=namespace)
    return error.value.failure.code


def test_a_grant_is_to_a_namespace_and_for_one_artifact() -> None:
    other = entry(id="team-a/x:model@", name="x", key=KEY)
    reader = pod_peer("reader", "team-b")
    assert resolved(reader, "team-a/minilm", SHARED, other) == SHARED
    assert refused(reader, "team-a/x", SHARED, other) is FailureCode.PERMISSION_DENIED
    assert refused(pod_peer("spy", "team-d"), "team-a/minilm", SHARED) is (
        FailureCode.PERMISSION_DENIED
    )


def test_what_is_not_granted_is_denied_alike_whether_it_is_there_or_not() -> None:
    spy = pod_peer("spy", "team-d")
    messages = []
    for name in ("minilm", "nothing"):
        with pytest.raises(WeightLeaseError) as error:
            resolved(spy, f"team-a/{name}", SHARED)
        messages.append(error.value.failure.message.replace(name, ""))
    assert messages[0] == messages[1]


def test_a_name_without_a_namespace_never_leaves_the_callers() -> None:
    reader = pod_peer("reader", "team-b")
    assert refused(reader, "minilm", SHARED) is FailureCode.LOCAL_MISS
    own = entry(id="team-b/minilm:model@", namespace="team-b")
    assert authorize_reference(reader, ArtifactReference("minilm"), [SHARED, own]) == own


def test_of_several_shards_those_that_are_granted_can_be_named() -> None:
    vae = entry(id="team-a/minilm:vae@", component="vae", access_namespaces=["team-b"])
    reader = pod_peer("reader", "team-b")
    assert resolved(reader, "team-a/minilm:vae", SHARED, vae) == vae
    assert refused(reader, "team-a/minilm", SHARED, vae) is FailureCode.INVALID_CONFIG


def test_a_key_is_granted_where_its_entry_lies() -> None:
    reader = pod_peer("reader", "team-b")
    assert granted_entries(reader, [SHARED], OWN_KEY) == [SHARED]
    assert granted_entries(reader, [SHARED], KEY) == []
    assert granted_entries(pod_peer("server-0"), [SHARED], OWN_KEY) == []
    assert granted_entries(uid_peer(), [SHARED], OWN_KEY) == []


def test_a_publisher_publishes_the_fixed_key_into_the_entrys_namespace() -> None:
    trainer = pod_peer("trainer-0", "team-c", service_account="trainer")
    for namespace in ("", "team-a"):
        grant = publish(trainer, SHARED, namespace=namespace)
        assert (grant.namespace, grant.entry, grant.unmanaged) == ("team-a", SHARED, False)


@pytest.mark.parametrize(
    ("peer", "wanted"),
    [
        (pod_peer("trainer-0", "team-c", service_account="default"), SHARED),
        (pod_peer("trainer-0", "team-d", service_account="trainer"), SHARED),
        (pod_peer("trainer-0", "team-c"), entry(key=OWN_KEY, publishers=["team-c/"])),
        (
            pod_peer("trainer-0", "team-c", service_account="trainer"),
            SHARED.model_copy(update={"key": KEY}),
        ),
        (
            pod_peer("trainer-0", "team-c", service_account="trainer"),
            SHARED.model_copy(update={"key": ""}),
        ),
        (
            pod_peer("trainer-0", "team-c", service_account="trainer"),
            SHARED.model_copy(update={"storage_class": MEMORY}),
        ),
        (pod_peer("t", "team-c", service_account="trainer", may_publish=False), SHARED),
    ],
    ids=["account", "namespace", "no account", "other key", "no key yet", "class", "unconfirmed"],
)
def test_nobody_else_publishes_by_that_grant(peer: Peer, wanted: WantedArtifact) -> None:
    assert refused_publication(peer, wanted) is FailureCode.PRODUCER_UNAVAILABLE
    assert refused_publication(peer, wanted, namespace="team-a") in {
        FailureCode.PERMISSION_DENIED,
        FailureCode.PRODUCER_UNAVAILABLE,
    }


def test_an_opened_namespace_publishes_any_key_into_itself() -> None:
    notebook, opened = pod_peer("notebook", "research"), frozenset({"research"})
    grant = publish(notebook, SHARED, opened=opened)
    assert (grant.namespace, grant.entry, grant.unmanaged) == ("research", None, True)
    with pytest.raises(WeightLeaseError) as error:
        publish(notebook, SHARED, opened=opened, namespace="team-a")
    assert error.value.failure.code is FailureCode.PERMISSION_DENIED


def test_a_job_of_an_opened_namespace_is_still_held_to_its_entry() -> None:
    opened = frozenset({"team-a"})
    grant = publish(pod_peer(), entry(), opened=opened)
    assert (grant.entry, grant.unmanaged) == (entry(), False)
    with pytest.raises(WeightLeaseError) as error:
        publish(pod_peer(), entry(key=KEY), opened=opened)
    assert error.value.failure.code is FailureCode.IDENTITY_MISMATCH
