"""What would make room: which artifacts may go, and what to tell whoever has to decide. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from weightlease.api.weight_node import CapacityLimit
from weightlease.reports import InventoryState
from weightlease_node_agent.ledger import Claim, Refusal, is_unmanaged
from weightlease_node_agent.removal import ready_keys, refers_to
from weightlease_node_agent.survey import Found
from weightlease_node_agent.wanted import Spec

# Which limit, and where an administrator sets it.
_LIMITS = {
    CapacityLimit.ARTIFACT: "the size of one artifact (agent.capacity.{0}.maxArtifact)",
    CapacityLimit.NAMESPACE_QUOTA: "the namespace's quota (agent.capacity.{0}.namespaceQuota)",
    CapacityLimit.UNMANAGED_QUOTA: "the quota of unmanaged keys (agent.unmanaged)",
    CapacityLimit.NODE_BUDGET: "the node's budget (agent.capacity.{0}.budget)",
    CapacityLimit.FREE_SPACE: "the filesystem's free space",
    CapacityLimit.FREE_INODES: "the filesystem's free inodes",
    CapacityLimit.MEMORY: "the node's available memory (agent.capacity.memory.minAvailable)",
}
_OF_NAMESPACE = {CapacityLimit.NAMESPACE_QUOTA, CapacityLimit.UNMANAGED_QUOTA}
_NEVER_FREED = {CapacityLimit.ARTIFACT, CapacityLimit.FREE_INODES}
_MAX_NAMES = 3
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def evictable(found: Iterable[Found], spec: Spec, *, managed: bool) -> list[Found]:
    """What nothing refers to and nobody leases, least recently leased first.

    On a managed node nothing is, until the spec is known to be current; on a bare host nothing is
    referred to.
    """
    if managed and not spec.may_remove:
        return []
    everything = list(found)
    ready = ready_keys(everything)
    free = [
        each
        for each in everything
        if each.state is InventoryState.READY
        and not each.leases
        and not refers_to(each, spec, ready)
    ]
    return sorted(free, key=lambda each: (each.last_used, each.place.namespace, each.key))


def counting_for(refused: Refusal, claim: Claim, found: Iterable[Found]) -> list[Found]:
    """Of some artifacts, those whose going would help a refused claim."""
    if refused.limit in _NEVER_FREED:
        return []
    same_class = [each for each in found if each.place.storage_class is claim.place.storage_class]
    if refused.limit not in _OF_NAMESPACE:
        return same_class
    own = [each for each in same_class if each.place == claim.place]
    unmanaged_only = refused.limit is CapacityLimit.UNMANAGED_QUOTA
    return [each for each in own if is_unmanaged(each) or not unmanaged_only]


def enough(candidates: Iterable[Found], shortfall: int) -> list[Found]:
    """The first candidates that free `shortfall` bytes; none when all of them would not."""
    chosen, freed = [], 0
    for each in candidates:
        if freed >= shortfall:
            break
        chosen.append(each)
        freed += each.size_bytes
    return chosen if freed >= shortfall else []


def advice(
    refused: Refusal, claim: Claim, found: Iterable[Found], free: list[Found], *, evicts: bool
) -> str:
    """Why a claim is refused and what would free space, for the namespace that made it.

    What other namespaces hold is told as a sum: names are not theirs to know.
    """
    limit = _LIMITS[refused.limit].format(claim.place.storage_class)
    told = [
        f"the artifact needs {size_text(refused.needed)}, {size_text(refused.available)} are left "
        f"within {limit}"
        if refused.limit is not CapacityLimit.FREE_INODES
        else f"nothing is left within {limit}"
    ]
    helping = counting_for(refused, claim, found)
    if helping:
        going = [each for each in helping if each in free]
        told += _going(going, evicts=evicts)
        told += _held([each for each in helping if each not in going], claim)
    return "; ".join(told)


def size_text(count: int) -> str:
    """Bytes in the largest unit that leaves a whole number before the point."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{count} B"


def _going(free: list[Found], *, evicts: bool) -> list[str]:
    if not free:
        return []
    sizes = size_text(sum(each.size_bytes for each in free))
    how = "would go by themselves" if evicts else "would go with agent.capacity.evict"
    return [f"{sizes} that nothing refers to and nobody leases {how}"]


def _held(held: list[Found], claim: Claim) -> list[str]:
    own = [each for each in held if each.place.namespace == claim.place.namespace]
    told = []
    leased = [each for each in own if each.leases]
    if leased:
        holders = sorted({str(record.holder) for each in leased for record in each.leases})
        told.append(f"{_sum(leased)} are leased by {_names(holders)}")
    idle = [each for each in own if not each.leases and each.state is InventoryState.READY]
    if idle:
        entries = sorted(
            {entry_id.partition(":")[0] for each in idle for entry_id, _ in each.made_for}
        )
        told.append(f"{_sum(idle)} would come free by deleting {_names(entries or ['them'])}")
    evidence = [each for each in own if each.state is InventoryState.QUARANTINED]
    if evidence:
        told.append(f"{_sum(evidence)} are quarantined")
    others = [each for each in held if each not in own]
    if others:
        told.append(f"{_sum(others)} belong to other namespaces")
    return told


def _sum(found: Iterable[Found]) -> str:
    return size_text(sum(each.size_bytes for each in found))


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
