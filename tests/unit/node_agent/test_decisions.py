"""What is reported, resolved and removed: pure decisions over what the agent sees."""

from __future__ import annotations

import json
from functools import partial

import pytest

from node_agent_world import ENTRY_ID, KEY, OTHER_KEY, PLACE, entry, found, lease
from weightlease.api.weight_node import HeldState, WantedArtifact, WeightNode, WeightNodeStatus
from weightlease.errors import FailureCode, WeightLeaseError
from weightlease.names import ArtifactReference, StorageClass
from weightlease.reports import InventoryState
from weightlease_node_agent.capacity import CapacityView
from weightlease_node_agent.domains import Place
from weightlease_node_agent.inventory import inspected, status
from weightlease_node_agent.removal import unwanted
from weightlease_node_agent.reporter import MAX_BURST, Written, is_due
from weightlease_node_agent.settings import Intervals
from weightlease_node_agent.survey import Found, Publishing, Root, Survey
from weightlease_node_agent.wanted import Spec, Wanted, resolve

NOW = "2026-01-01T00:00:00Z"


def spec(*entries: WantedArtifact, seen: bool = True, synced: bool = True) -> Spec:
    return Spec(entries, 3, seen, synced)


def report(survey: Survey, of: Spec) -> WeightNodeStatus:
    return status(CapacityView(survey), of, agent_version="1", reported_at=NOW)


# ---- the spec ----


def test_a_lost_watch_keeps_the_entries_and_removes_nothing() -> None:
    wanted = Wanted()
    node = WeightNode.model_validate({"metadata": {"generation": 3}})
    seen = [(wanted.spec.generation, wanted.spec.may_remove)]
    changes = (partial(wanted.observe, node), wanted.lose, partial(wanted.observe, None))
    for change in changes:
        change()
        seen.append((wanted.spec.generation, wanted.spec.may_remove))
    assert seen == [(0, False), (3, True), (3, False), (0, False)]


def test_a_reference_names_one_shard() -> None:
    vae = entry(id="team-a/minilm:vae@", component="vae")
    reference = ArtifactReference("minilm", "team-a")
    assert resolve([entry()], reference) == entry()
    assert resolve([entry(), vae], ArtifactReference("minilm", "team-a", "vae")) == vae
    with pytest.raises(WeightLeaseError) as several:
        resolve([entry(), vae], reference)
    assert several.value.failure.code is FailureCode.INVALID_CONFIG
    assert vae.id in several.value.failure.message
    with pytest.raises(WeightLeaseError) as none:
        resolve([entry()], ArtifactReference("minilm", "team-b"))
    assert (none.value.failure.code, none.value.failure.retryable) == (FailureCode.LOCAL_MISS, True)


# ---- removal ----


def keys(*seen: Found, of: Spec) -> list[str]:
    return [each.key for each in unwanted(seen, of)]


def test_what_no_entry_names_is_unwanted() -> None:
    assert keys(found(), of=spec()) == [KEY]
    assert keys(found(), of=spec(entry(key=KEY))) == []
    assert keys(found(), of=spec(entry(key=OTHER_KEY))) == [KEY]


@pytest.mark.parametrize("of", [spec(seen=False), spec(synced=False)])
def test_nothing_is_unwanted_by_an_unknown_or_stale_spec(of: Spec) -> None:
    assert keys(found(), of=of) == []


def test_an_entry_of_another_namespace_or_class_wants_nothing_here() -> None:
    elsewhere = entry(key=KEY, namespace="team-b")
    in_memory = entry(key=KEY, storage_class=StorageClass.MEMORY)
    assert keys(found(), of=spec(elsewhere, in_memory)) == [KEY]


def test_what_is_leased_stays() -> None:
    assert keys(found(leases=(lease(),)), of=spec()) == []


def test_a_canarys_artifact_stays_until_the_key_is_decided() -> None:
    made = found(made_for=((ENTRY_ID, 1),))
    assert keys(made, of=spec(entry())) == []
    assert keys(made, of=spec(entry(key=KEY))) == []
    assert keys(made, of=spec(entry(key=OTHER_KEY))) == [KEY]


def test_the_old_generation_stays_until_the_new_one_is_here() -> None:
    old = found(made_for=((ENTRY_ID, 1),))
    new = entry(generation=2, key=OTHER_KEY)
    assert keys(old, of=spec(new)) == []
    assert keys(old, found(OTHER_KEY, denied=True), of=spec(new)) == []
    assert keys(old, found(OTHER_KEY), of=spec(new)) == [KEY]


@pytest.mark.parametrize("state", [InventoryState.QUARANTINED, InventoryState.TEMPORARY])
def test_quarantine_and_staging_are_not_the_specs_business(state: InventoryState) -> None:
    assert keys(found(state=state), of=spec()) == []


# ---- status ----


def test_the_status_says_what_is_here_and_for_whom() -> None:
    leases = (lease("server-0"), lease("server-1"))
    survey = Survey(
        found=(found(leases=leases),),
        roots=(Root(StorageClass.DISK, "/store", "ext4", 1000, 400),),
        domains=((PLACE, "uuid"),),
    )
    made = report(survey, spec(entry(key=KEY), entry(id="team-a/x:model@", name="x")))
    (row,) = made.inventory
    assert (row.state, row.bytes, row.wanted_id) == (HeldState.READY, 100, ENTRY_ID)
    assert [holder.holder for holder in row.leases] == ["team-a/server-0", "team-a/server-1"]
    assert (made.ready, made.leases, made.observed_generation) == ("1/2", 2, 3)
    assert made.domains[0].domain_uuid == "uuid"
    assert made.roots[0].free_bytes == 400


def test_one_key_that_serves_two_entries_is_listed_for_both() -> None:
    twin = entry(id="team-a/twin:model@", name="twin")
    seen = found(made_for=((ENTRY_ID, 1), (twin.id, 1)))
    rows = report(Survey((seen,)), spec(entry(), twin)).inventory
    assert [row.wanted_id for row in rows] == [ENTRY_ID, twin.id]


def test_the_old_generations_bytes_do_not_pose_as_the_canarys() -> None:
    old = found(made_for=((ENTRY_ID, 1),))
    (row,) = report(Survey((old,)), spec(entry(generation=2))).inventory
    assert row.wanted_id == ""


def test_bytes_of_a_deleted_entry_still_name_it() -> None:
    (row,) = report(Survey((found(made_for=((ENTRY_ID, 1),)),)), spec()).inventory
    assert row.wanted_id == ENTRY_ID


def test_a_denied_artifact_is_invalid_and_not_ready() -> None:
    seen = found(denied=True, reason="checksum_mismatch")
    made = report(Survey((seen,)), spec(entry(key=KEY)))
    assert (made.inventory[0].state, made.ready) == (HeldState.INVALID, "0/1")


def test_a_publication_reports_its_progress() -> None:
    survey = Survey(publishing=(Publishing(PLACE, KEY, ENTRY_ID, 100, 40),))
    (row,) = report(survey, spec(entry())).inventory
    assert (row.state, row.bytes, row.bytes_done) == (HeldState.PUBLISHING, 100, 40)


def test_holders_are_cut_at_a_hundred_and_the_count_is_not() -> None:
    seen = found(leases=tuple(lease(f"pod-{n}") for n in range(150)))
    (row,) = report(Survey((seen,)), spec()).inventory
    assert (len(row.leases), row.lease_count) == (100, 150)


def test_a_status_fits_into_one_object() -> None:
    leases = tuple(lease(f"pod-{m:04}") for m in range(100))
    seen = tuple(found(f"{n:064x}", leases=leases) for n in range(2000))
    made = report(Survey(seen), spec())
    assert len(json.dumps(made.to_json())) < 1_500_000
    assert made.leases == 200_000


def test_inspect_shows_every_state_and_filters_by_key() -> None:
    staging = found(OTHER_KEY, state=InventoryState.TEMPORARY, place=Place("b", StorageClass.DISK))
    survey = Survey((found(leases=(lease(),)), staging))
    assert [row.state for row in inspected(survey, Spec()).artifacts] == ["ready", "temporary"]
    (row,) = inspected(survey, spec(entry(key=KEY)), KEY).artifacts
    assert (row.references, row.leases) == ((ENTRY_ID,), ("team-a/server-0",))


# ---- when to report ----

INTERVALS = Intervals(status=15, heartbeat=60)
FREE = report(Survey(roots=(Root(StorageClass.DISK, "/s", "ext4", 10, 5),)), spec())
FULL = report(Survey(roots=(Root(StorageClass.DISK, "/s", "ext4", 10, 1),)), spec())
READY = report(Survey((found(),)), spec())
LEASED = report(Survey((found(leases=(lease(),)),)), spec())
LEASED_TWICE = report(Survey((found(leases=(lease(), lease("other"))),)), spec())


@pytest.mark.parametrize(
    ("last", "now", "seconds", "due"),
    [
        (FREE, FREE, 59, False),
        (FREE, FREE, 60, True),
        (FREE, FULL, 14, False),
        (FREE, FULL, 15, True),
        (FREE, READY, 1, True),
        (READY, LEASED, 1, True),
        (LEASED, READY, 1, True),
        (LEASED, LEASED_TWICE, 1, False),
        (LEASED, LEASED_TWICE, 15, True),
    ],
)
def test_a_status_is_written_rarely_or_at_once(
    last: WeightNodeStatus, now: WeightNodeStatus, seconds: float, due: bool
) -> None:
    assert is_due(Written(100, last), now, 100 + seconds, INTERVALS) is due
    assert is_due(None, now, 0, INTERVALS)


def test_a_state_that_flaps_is_written_a_few_times_an_interval() -> None:
    flapping = Written(114, READY, [100.0 + n for n in range(MAX_BURST)])
    assert not is_due(flapping, LEASED, 114.5, INTERVALS)
    assert is_due(flapping, LEASED, 129, INTERVALS)
    assert is_due(flapping, LEASED, 115.5, INTERVALS)
