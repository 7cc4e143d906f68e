"""From what the agent sees to what it says: WeightNode status and inspect replies, purely."""

from __future__ import annotations

from collections.abc import Iterator

from weightlease.api.weight_node import (
    DomainStatus,
    HeldArtifact,
    HeldState,
    LeaseHolder,
    RootStatus,
    WantedArtifact,
    WeightNodeStatus,
)
from weightlease.lease_record import LeaseRecord
from weightlease.reports import InventoryState
from weightlease.wire import InspectedArtifact, InspectResult
from weightlease_node_agent.capacity import CapacityView
from weightlease_node_agent.domains import Place
from weightlease_node_agent.ledger import Account, Room, limits_of
from weightlease_node_agent.records import UNMANAGED
from weightlease_node_agent.survey import Found, Root, Survey
from weightlease_node_agent.wanted import Spec

MAX_HOLDERS = 100
# Below what etcd takes for one object, with names of ordinary length.
MAX_INVENTORY = 1500
MAX_LISTED_HOLDERS = 3000
MAX_INSPECTED = 1000
MAX_BLOCKED = 200


def status(
    view: CapacityView, spec: Spec, *, agent_version: str, reported_at: str
) -> WeightNodeStatus:
    """The status of this node's WeightNode."""
    survey = view.survey
    held = [*_publishing(survey), *(row for found in survey.found for row in _rows(found, spec))]
    held.sort(key=lambda row: (row.namespace, row.storage_class, row.key, row.wanted_id))
    ready = {
        (row.namespace, row.storage_class, row.key) for row in held if row.state is HeldState.READY
    }
    wanted_ready = sum(
        (entry.namespace, entry.storage_class, entry.key) in ready for entry in spec.entries
    )
    return WeightNodeStatus(
        observed_generation=spec.generation,
        agent_version=agent_version,
        reported_at=reported_at,
        roots=[_root(root, room) for root, room in zip(survey.roots, view.rooms, strict=True)],
        domains=[_domain(view, place, uuid) for place, uuid in survey.domains],
        inventory=_fitting(held),
        blocked=sorted(view.blocked, key=lambda row: row.id)[:MAX_BLOCKED],
        ready=f"{wanted_ready}/{len(spec.entries)}",
        leases=sum(len(found.leases) for found in survey.found),
    )


def references(found: Found, spec: Spec) -> list[str]:
    """The spec entries that an artifact answers.

    An entry with a key is answered by that key alone; one without by what was made for it in its
    present generation, which is how the operator learns a canary's key.
    """
    made_for = dict(found.made_for)

    def answers(entry: WantedArtifact) -> bool:
        if (entry.namespace, entry.storage_class) != (
            found.place.namespace,
            found.place.storage_class,
        ):
            return False
        if entry.key:
            return entry.key == found.key
        return made_for.get(entry.id) == entry.generation

    return sorted(entry.id for entry in spec.entries if answers(entry))


def inspected(survey: Survey, spec: Spec, key: str = "") -> InspectResult:
    """The reply to `inspect`; an empty key means everything."""
    chosen = [found for found in survey.found if key in {"", found.key}]
    rows = [
        InspectedArtifact(
            found.key,
            str(found.state),
            found.storage_name,
            found.size_bytes,
            found.place.namespace,
            str(found.place.storage_class),
            found.reason,
            tuple(references(found, spec)),
            tuple(str(record.holder) for record in found.leases[:MAX_HOLDERS]),
        )
        for found in chosen[:MAX_INSPECTED]
    ]
    return InspectResult(tuple(rows), truncated=len(chosen) > MAX_INSPECTED)


def _rows(found: Found, spec: Spec) -> Iterator[HeldArtifact]:
    if found.state is not InventoryState.READY:
        return
    state = HeldState.INVALID if found.denied else HeldState.READY
    # One row for each entry that the artifact answers or was made for before the entry went, so
    # that none hides behind another and a deletion sees its bytes until they are gone.
    present = {UNMANAGED, *(entry.id for entry in spec.entries)}
    gone = [each for each, _ in found.made_for if each not in present]
    for wanted_id in [*references(found, spec), *gone] or [""]:
        yield HeldArtifact(
            namespace=found.place.namespace,
            storage_class=found.place.storage_class,
            key=found.key,
            state=state,
            bytes=found.payload_bytes,
            bytes_done=found.payload_bytes,
            manifest_sha256=found.manifest_sha256,
            wanted_id=wanted_id,
            reason=found.reason,
            leases=[_holder(record) for record in found.leases[:MAX_HOLDERS]],
            lease_count=len(found.leases),
        )


def _root(root: Root, room: Room) -> RootStatus:
    return RootStatus(
        storage_class=root.storage_class,
        path=root.path,
        filesystem=root.filesystem,
        capacity_bytes=root.capacity_bytes,
        free_bytes=root.free_bytes,
        budget_bytes=room.budget,
        min_free_bytes=room.floor,
        used_bytes=room.used,
        reserved_bytes=room.reserved,
        evictable_bytes=room.evictable,
        available_bytes=room.available,
    )


def _domain(view: CapacityView, place: Place, uuid: str) -> DomainStatus:
    account = view.books.domains.get(place, Account())
    return DomainStatus(
        namespace=place.namespace,
        storage_class=place.storage_class,
        domain_uuid=uuid,
        used_bytes=account.used,
        reserved_bytes=account.unwritten,
        quota_bytes=limits_of(view.settings, place.storage_class).quota_of(place.namespace),
    )


def _fitting(rows: list[HeldArtifact]) -> list[HeldArtifact]:
    """As many rows, and as many holders by name, as one object takes; counts stay exact."""
    left, fitting = MAX_LISTED_HOLDERS, []
    for row in rows[:MAX_INVENTORY]:
        fitting.append(row.model_copy(update={"leases": row.leases[:left]}))
        left -= len(fitting[-1].leases)
    return fitting


def _publishing(survey: Survey) -> Iterator[HeldArtifact]:
    for publication in survey.publishing:
        yield HeldArtifact(
            namespace=publication.place.namespace,
            storage_class=publication.place.storage_class,
            key=publication.key,
            state=HeldState.PUBLISHING,
            bytes=publication.total_bytes,
            bytes_done=min(publication.done_bytes, publication.total_bytes),
            wanted_id=publication.entry_id,
        )


def _holder(record: LeaseRecord) -> LeaseHolder:
    return LeaseHolder(holder=str(record.holder), since=record.since)
