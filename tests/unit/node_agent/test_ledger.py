"""The account of bytes: what is counted, what is refused, and that nothing is counted twice."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from node_agent_world import KEY, OTHER_KEY, PLACE, found
from weightlease.api.weight_node import CapacityLimit
from weightlease.names import StorageClass
from weightlease.reports import InventoryState
from weightlease_node_agent.capacity_settings import CapacitySettings, Unmanaged
from weightlease_node_agent.domains import Place
from weightlease_node_agent.ledger import (
    Account,
    Claim,
    Ledger,
    Refusal,
    available,
    excess,
    refusal,
    room_of,
)
from weightlease_node_agent.records import UNMANAGED
from weightlease_node_agent.survey import Found, Root, Survey

NEIGHBOUR = Place("team-b", StorageClass.DISK)
IN_MEMORY = Place("team-a", StorageClass.MEMORY)
DISK = Root(StorageClass.DISK, "/store/disk", "ext4", 10_000, 5_000, 1_000, 500)
MEMORY = Root(StorageClass.MEMORY, "/store/memory", "tmpfs", 4_000, 3_000, memory_bytes=2_000)


def survey(*seen: Found, roots: tuple[Root, ...] = (DISK, MEMORY)) -> Survey:
    return Survey(seen, roots=roots, domains=((PLACE, "1"), (NEIGHBOUR, "2"), (IN_MEMORY, "3")))


def held(size: int, place: Place = PLACE, key: str = KEY, **changes: Any) -> Found:
    return found(key, place=place, size_bytes=size, **changes)


def settings(memory: dict[str, Any] | None = None, **disk: Any) -> CapacitySettings:
    return CapacitySettings.model_validate({"disk": disk, "memory": memory or {}})


def decide(
    claim: Claim,
    limits: CapacitySettings,
    *seen: Found,
    ledger: Ledger | None = None,
    opened: dict[str, Unmanaged] | None = None,
) -> Refusal | None:
    book = ledger or Ledger()
    books = book.books(survey(*seen), book.look_begins())
    return refusal(books, claim, limits, opened or {})


def claim(total: int, place: Place = PLACE, key: str = OTHER_KEY, **changes: Any) -> Claim:
    return Claim(place, key, total, **changes)


def test_without_limits_the_filesystem_alone_decides() -> None:
    assert decide(claim(5_000), settings()) is None
    assert decide(claim(5_001), settings()) == Refusal(CapacityLimit.FREE_SPACE, 5_001, 5_000)


@pytest.mark.parametrize(
    ("limits", "limit", "left"),
    [
        ({"max_artifact": 900}, CapacityLimit.ARTIFACT, 900),
        ({"namespace_quota": 1_200}, CapacityLimit.NAMESPACE_QUOTA, 700),
        ({"namespace_quota": 1, "namespace_quotas": {"team-a": 1_300}},
         CapacityLimit.NAMESPACE_QUOTA, 800),
        ({"budget": 1_500}, CapacityLimit.NODE_BUDGET, 700),
        ({"min_free": 4_200}, CapacityLimit.FREE_SPACE, 800),
        ({"min_free_percent": 42}, CapacityLimit.FREE_SPACE, 800),
        ({"min_free": 100, "min_free_percent": 45}, CapacityLimit.FREE_SPACE, 500),
    ],
)  # fmt: skip
def test_the_first_limit_that_a_claim_would_pass_is_named(
    limits: dict[str, Any], limit: CapacityLimit, left: int
) -> None:
    here, there = held(500), held(300, NEIGHBOUR)
    assert decide(claim(left), settings(**limits), here, there) is None
    refused = decide(claim(1_000), settings(**limits), here, there)
    assert refused == Refusal(limit, 1_000, left)
    assert refused.shortfall == 1_000 - left


def test_free_inodes_have_a_floor_of_their_own() -> None:
    assert decide(claim(1), settings(min_free_inodes_percent=49)) is None
    refused = decide(claim(1), settings(min_free_inodes_percent=50))
    assert refused is not None
    assert refused.limit is CapacityLimit.FREE_INODES


def test_the_memory_class_is_bounded_by_the_nodes_memory_and_by_its_tmpfs() -> None:
    in_memory = claim(1_500, IN_MEMORY)
    assert decide(in_memory, settings()) is None
    low = decide(in_memory, settings(memory={"min_available": 600}))
    assert low == Refusal(CapacityLimit.MEMORY, 1_500, 1_400)
    full = decide(claim(3_500, IN_MEMORY), settings())
    assert full == Refusal(CapacityLimit.FREE_SPACE, 3_500, 3_000)
    assert decide(in_memory, settings(budget=1)) is None, "the disk's budget is the disk's"


def test_two_publications_that_fit_alone_do_not_fit_together() -> None:
    ledger, limits = Ledger(), settings(budget=1_000)
    assert decide(claim(600), limits, ledger=ledger) is None
    first = ledger.reserve(claim(600))
    refused = decide(claim(600, key=KEY), limits, ledger=ledger)
    assert refused == Refusal(CapacityLimit.NODE_BUDGET, 600, 400)
    ledger.end(first)
    assert decide(claim(600, key=KEY), limits, ledger=ledger) is None


def test_what_is_staged_counts_once() -> None:
    ledger = Ledger()
    ledger.reserve(claim(600))
    staged = held(250, key=OTHER_KEY, state=InventoryState.TEMPORARY)
    books = ledger.books(survey(staged, held(100)), ledger.look_begins())
    assert books.domains[PLACE] == Account(350, 350)
    assert books.of_class(StorageClass.DISK).committed == 700


def test_staging_larger_than_its_claim_takes_what_it_takes() -> None:
    ledger = Ledger()
    ledger.reserve(claim(600))
    staged = held(700, key=OTHER_KEY, state=InventoryState.TEMPORARY)
    books = ledger.books(survey(staged), ledger.look_begins())
    assert books.domains[PLACE] == Account(700, 0)


def test_a_publication_that_ends_during_a_look_is_counted_once_whether_seen_or_not() -> None:
    for seen in ((), (held(600, key=OTHER_KEY),)):
        ledger = Ledger()
        number = ledger.reserve(claim(600))
        since = ledger.look_begins()
        ledger.end(number)
        books = ledger.books(survey(*seen), since)
        assert books.domains[PLACE].committed == 600
        later = ledger.look_begins()
        ledger.forget_ended(later)
        assert ledger.books(survey(), later).domains[PLACE].committed == 0


def test_quarantine_and_deny_markers_take_room() -> None:
    rows = [held(100, state=state, key=KEY) for state in InventoryState]
    books = Ledger().books(survey(*rows), 1)
    assert books.domains[PLACE].used == 100 * len(InventoryState)


def test_unmanaged_keys_have_a_quota_of_their_own() -> None:
    opened = {"team-a": Unmanaged(quota=1_000, expiry_seconds=60)}
    free = held(700, made_for=((UNMANAGED, 0),))
    own = claim(400, unmanaged=True)
    refused = decide(own, settings(), free, held(5_000, key=OTHER_KEY), opened=opened)
    assert refused == Refusal(CapacityLimit.UNMANAGED_QUOTA, 400, 300)
    assert decide(claim(400), settings(), free, opened=opened) is None


def test_an_unmanaged_publication_in_progress_takes_its_quota() -> None:
    opened = {"team-a": Unmanaged(quota=1_000, expiry_seconds=60)}
    ledger = Ledger()
    ledger.reserve(claim(700, key=KEY, unmanaged=True))
    staged = held(500, state=InventoryState.TEMPORARY)
    refused = decide(claim(400, unmanaged=True), settings(), staged, ledger=ledger, opened=opened)
    assert refused == Refusal(CapacityLimit.UNMANAGED_QUOTA, 400, 300)


def test_a_class_knows_what_is_left_and_what_is_too_much() -> None:
    ledger = Ledger()
    books = ledger.books(survey(held(900)), ledger.look_begins())
    tight = settings(budget=1_000, min_free=4_000)
    assert available(books, StorageClass.DISK, tight) == 100
    assert excess(books, StorageClass.DISK, tight) == 0
    over = settings(budget=500, min_free=5_300)
    assert available(books, StorageClass.DISK, over) == 0
    assert excess(books, StorageClass.DISK, over) == 400
    room = room_of(books, DISK, tight, [held(900)])
    assert (room.used, room.budget, room.floor, room.evictable) == (900, 1_000, 4_000, 900)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("", 0),
        ("12", 12),
        ("2Ki", 2048),
        ("3k", 3000),
        ("1Gi", 2**30),
        ("5T", 5 * 10**12),
    ],
)
def test_sizes_are_written_as_kubernetes_writes_them(text: str, value: int) -> None:
    assert settings(budget=text).disk.budget == value


@pytest.mark.parametrize("text", ["-1", "1.5Gi", "10%", "Gi", "1e3", "9" * 40, "1KiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="no size"):
        settings(budget=text)


def test_names_of_values_and_of_settings_are_both_understood() -> None:
    camel = CapacitySettings.model_validate({"disk": {"maxArtifact": "1Ki", "minFreePercent": 7}})
    assert (camel.disk.max_artifact, camel.disk.min_free_percent) == (1024, 7)
