"""What may go to make room, in which order, and what a tenant is told."""

from __future__ import annotations

from typing import Any

import pytest

from node_agent_world import ENTRY_ID, KEY, OTHER_KEY, PLACE, entry, found, lease
from weightlease.api.weight_node import CapacityLimit
from weightlease.names import StorageClass
from weightlease.reports import InventoryState
from weightlease_node_agent.capacity_settings import Unmanaged
from weightlease_node_agent.domains import Place
from weightlease_node_agent.ledger import Claim, Refusal
from weightlease_node_agent.records import UNMANAGED
from weightlease_node_agent.relief import advice, counting_for, enough, evictable, size_text
from weightlease_node_agent.removal import keep_unmanaged, unwanted
from weightlease_node_agent.survey import Found
from weightlease_node_agent.wanted import Spec

CURRENT = Spec((), 1, seen=True, synced=True)
NEIGHBOUR = Place("team-b", StorageClass.DISK)
CLAIM = Claim(PLACE, OTHER_KEY, 1_000)


def keys(*seen: Found, spec: Spec = CURRENT, managed: bool = True) -> list[str]:
    return [each.key for each in evictable(seen, spec, managed=managed)]


def number(n: int, **changes: Any) -> Found:
    return found(f"{n:064x}", **changes)


def test_the_least_recently_leased_goes_first() -> None:
    seen = [number(1, last_used=30.0), number(2, last_used=10.0), number(3, last_used=20.0)]
    assert keys(*seen) == [seen[1].key, seen[2].key, seen[0].key]


def test_what_is_leased_referred_to_or_not_whole_never_goes() -> None:
    wanted = Spec((entry(key=KEY),), 1, seen=True, synced=True)
    assert keys(found(leases=(lease(),))) == []
    assert keys(found(), spec=wanted) == []
    assert keys(found(OTHER_KEY), spec=wanted) == [OTHER_KEY]
    canary = found(made_for=((ENTRY_ID, 1),))
    assert keys(canary, spec=Spec((entry(),), 1, seen=True, synced=True)) == []
    assert keys(*(found(state=state) for state in InventoryState if state != "ready")) == []


@pytest.mark.parametrize("spec", [Spec(), Spec(seen=True), Spec(synced=True)])
def test_nothing_goes_while_the_spec_is_unknown_or_stale(spec: Spec) -> None:
    assert keys(found(), spec=spec) == []
    assert keys(found(), spec=spec, managed=False) == [KEY]


def test_no_artifact_goes_in_vain() -> None:
    seen = [number(n, size_bytes=100) for n in range(3)]
    assert enough(seen, 150) == seen[:2]
    assert enough(seen, 300) == seen
    assert enough(seen, 301) == []


def test_only_what_counts_against_the_passed_limit_helps() -> None:
    own, theirs = number(1), number(2, place=NEIGHBOUR)
    other_class = number(3, place=Place("team-a", StorageClass.MEMORY))
    free = number(4, made_for=((UNMANAGED, 0),))
    everything = [own, theirs, other_class, free]

    def helping(limit: CapacityLimit) -> list[Found]:
        return counting_for(Refusal(limit, 2, 1), CLAIM, everything)

    assert helping(CapacityLimit.NODE_BUDGET) == [own, theirs, free]
    assert helping(CapacityLimit.FREE_SPACE) == [own, theirs, free]
    assert helping(CapacityLimit.NAMESPACE_QUOTA) == [own, free]
    assert helping(CapacityLimit.UNMANAGED_QUOTA) == [free]
    assert helping(CapacityLimit.ARTIFACT) == []


def test_the_advice_names_what_the_namespace_holds_and_sums_what_others_hold() -> None:
    refused = Refusal(CapacityLimit.NODE_BUDGET, 4096, 1024)
    gone = number(1, size_bytes=512)
    leased = number(2, size_bytes=2048, leases=(lease("server-0"),))
    idle = number(3, size_bytes=3072, made_for=((ENTRY_ID, 1),))
    secret = number(4, size_bytes=700, place=NEIGHBOUR, made_for=(("team-b/secret:model@", 1),))
    bad = number(5, size_bytes=100, state=InventoryState.QUARANTINED)
    text = advice(refused, CLAIM, [gone, leased, idle, secret, bad], [gone], evicts=False)
    assert text == (
        "the artifact needs 4.0 KiB, 1.0 KiB are left within the node's budget "
        "(agent.capacity.disk.budget); 512 B that nothing refers to and nobody leases would go "
        "with agent.capacity.evict; 2.0 KiB are leased by team-a/server-0; 3.0 KiB would come free "
        "by deleting team-a/minilm; 100 B are quarantined; 700 B belong to other namespaces"
    )
    assert "secret" not in text


def test_a_limit_on_one_artifact_is_not_helped_by_deleting_others() -> None:
    text = advice(Refusal(CapacityLimit.ARTIFACT, 9, 8), CLAIM, [found()], [], evicts=True)
    assert text.endswith("(agent.capacity.disk.maxArtifact)")


def test_long_lists_are_cut() -> None:
    leases = tuple(lease(f"server-{n}") for n in range(5))
    refused = Refusal(CapacityLimit.NODE_BUDGET, 2, 1)
    text = advice(refused, CLAIM, [found(leases=leases)], [], evicts=False)
    assert text.endswith("team-a/server-0, team-a/server-1, team-a/server-2 and 2 more")


def test_sizes_read_well() -> None:
    assert [size_text(size) for size in (0, 1023, 1024, 3 * 2**40, 5000 * 2**40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "3.0 TiB",
        "5000.0 TiB",
    ]


def test_an_unmanaged_key_stays_until_it_expires_and_no_longer_than_its_namespace_is_open() -> None:
    opened = {"team-a": Unmanaged(quota=1, expiry_seconds=60)}
    free = found(made_for=((UNMANAGED, 0),), last_used=1_000.0)
    assert unwanted([free], CURRENT, keep_unmanaged(opened, 1_059.0)) == []
    assert unwanted([free], CURRENT, keep_unmanaged(opened, 1_060.0)) == [free]
    assert unwanted([free], CURRENT, keep_unmanaged({}, 1_059.0)) == [free]
    managed = found(last_used=1_000.0)
    assert unwanted([managed], CURRENT, keep_unmanaged(opened, 1_000.0)) == [managed]
