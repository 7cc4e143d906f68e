"""One account of bytes over all domains of a node: arithmetic alone, no clock and no disk.

    used        what lies in a domain: published, denied, quarantined, staging in progress
    unwritten   what publications in progress may still write there
    committed   used + unwritten; quotas and the budget bound it

The filesystem's free bytes, less what is unwritten and less the floor, bound what comes next. A
reservation that ends stays in the account until a look at the disk that began later: what has just
been published is counted by one of the two at every moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from weightlease.api.weight_node import CapacityLimit
from weightlease.names import StorageClass
from weightlease.reports import InventoryState
from weightlease_node_agent.capacity_settings import CapacitySettings, ClassCapacity, Unmanaged
from weightlease_node_agent.domains import Place
from weightlease_node_agent.records import UNMANAGED
from weightlease_node_agent.survey import Found, Root, Survey


@dataclass(frozen=True)
class Claim:
    """What a publication may write, in bytes; `entry_id` is what it is for, if anything."""

    place: Place
    key: str
    total_bytes: int
    entry_id: str = ""
    unmanaged: bool = False


@dataclass(frozen=True)
class Refusal:
    """The first limit that a claim would pass, in bytes (inodes for FREE_INODES)."""

    limit: CapacityLimit
    needed: int
    available: int

    @property
    def shortfall(self) -> int:
        """What has to go until the claim fits."""
        return self.needed - self.available


@dataclass(frozen=True)
class Account:
    """One domain, or several, in bytes."""

    used: int = 0
    unwritten: int = 0

    @property
    def committed(self) -> int:
        return self.used + self.unwritten

    def __add__(self, other: Account) -> Account:
        return Account(self.used + other.used, self.unwritten + other.unwritten)


@dataclass(frozen=True)
class Books:
    """Every account at one instant; `unmanaged` counts keys without an entry alone."""

    domains: Mapping[Place, Account] = field(default_factory=dict)
    unmanaged: Mapping[Place, Account] = field(default_factory=dict)
    roots: Mapping[StorageClass, Root] = field(default_factory=dict)

    def of_class(self, storage_class: StorageClass) -> Account:
        """All domains of a class together."""
        chosen = (
            account
            for place, account in self.domains.items()
            if place.storage_class is storage_class
        )
        return sum(chosen, Account())


@dataclass(frozen=True)
class Room:
    """What there is of a class, in bytes; `budget` is 0 without one."""

    storage_class: StorageClass
    used: int
    reserved: int
    budget: int
    floor: int
    evictable: int
    available: int


class Ledger:
    """The reservations of an agent. `look_begins` is called before each look at the disk."""

    def __init__(self) -> None:
        self._live: dict[int, Claim] = {}
        self._ended: dict[int, tuple[Claim, int]] = {}
        self._tick = 0
        self._number = 0

    def look_begins(self) -> int:
        """The instant at which a look begins, for `books`."""
        self._tick += 1
        return self._tick

    def reserve(self, claim: Claim) -> int:
        """Promise a claim its bytes; the number that ends it."""
        self._number += 1
        self._live[self._number] = claim
        return self._number

    def end(self, number: int) -> None:
        """The publication is over, whatever became of it."""
        claim = self._live.pop(number, None)
        if claim is not None:
            self._ended[number] = (claim, self._tick)

    def forget_ended(self, since: int) -> None:
        """Drop what ended before a look that began at `since`: that look has seen the result."""
        self._ended = {
            number: (claim, at) for number, (claim, at) in self._ended.items() if at >= since
        }

    def books(self, survey: Survey, since: int) -> Books:
        """The accounts, given what a look that began at `since` has found."""
        lies, staged = Counter[tuple[Place, str]](), Counter[tuple[Place, str]]()
        domains = {place: Account() for place, _ in survey.domains}
        unmanaged: dict[Place, Account] = {}
        for found in survey.found:
            slot = (found.place, found.key)
            (staged if found.state is InventoryState.TEMPORARY else lies)[slot] += found.size_bytes
            _add(domains, found.place, Account(found.size_bytes))
            if is_unmanaged(found):
                _add(unmanaged, found.place, Account(found.size_bytes))
        live = [(claim, False) for claim in self._live.values()]
        ended = [(claim, True) for claim, at in self._ended.values() if at >= since]
        for claim, over in (*live, *ended):
            slot = (claim.place, claim.key)
            seen = staged[slot] + (lies[slot] if over else 0)
            left = max(claim.total_bytes - seen, 0)
            _add(domains, claim.place, Account(0, left))
            if claim.unmanaged:
                # Its staging is nobody's yet: only what is published is known to be unmanaged.
                _add(unmanaged, claim.place, Account(min(staged[slot], claim.total_bytes), left))
        return Books(domains, unmanaged, {root.storage_class: root for root in survey.roots})


def refusal(
    books: Books, claim: Claim, settings: CapacitySettings, unmanaged: Mapping[str, Unmanaged]
) -> Refusal | None:
    """The first limit that `claim` would pass; None when it fits."""
    limits, place = limits_of(settings, claim.place.storage_class), claim.place
    own = books.domains.get(place, Account()).committed
    free = books.unmanaged.get(place, Account()).committed
    opened = unmanaged.get(place.namespace)
    bounds: list[tuple[CapacityLimit, int | None]] = [
        (CapacityLimit.ARTIFACT, _left(limits.max_artifact, 0)),
        (CapacityLimit.NAMESPACE_QUOTA, _left(limits.quota_of(place.namespace), own)),
        (
            CapacityLimit.UNMANAGED_QUOTA,
            _left(opened.quota, free) if claim.unmanaged and opened else None,
        ),
        *_class_bounds(books, place.storage_class, settings),
    ]
    for limit, available in bounds:
        if available is not None and claim.total_bytes > available:
            return Refusal(limit, claim.total_bytes, max(available, 0))
    inodes = _free_inodes(books.roots.get(place.storage_class), settings)
    if inodes is not None and inodes <= 0:
        return Refusal(CapacityLimit.FREE_INODES, 1, 0)
    return None


def available(books: Books, storage_class: StorageClass, settings: CapacitySettings) -> int:
    """What the next publication of a class may take at most, whoever makes it."""
    bounds = [left for _, left in _class_bounds(books, storage_class, settings) if left is not None]
    return max(min(bounds, default=0), 0)


def room_of(books: Books, root: Root, settings: CapacitySettings, free: Iterable[Found]) -> Room:
    """A class in figures; `free` is what may be evicted, of every class."""
    account = books.of_class(root.storage_class)
    return Room(
        root.storage_class,
        account.used,
        account.unwritten,
        limits_of(settings, root.storage_class).budget,
        floor_of(root, settings),
        sum(each.size_bytes for each in free if each.place.storage_class is root.storage_class),
        available(books, root.storage_class, settings),
    )


def excess(books: Books, storage_class: StorageClass, settings: CapacitySettings) -> int:
    """How many bytes of a class have to go until it keeps its limits again."""
    bounds = [left for _, left in _class_bounds(books, storage_class, settings) if left is not None]
    return max(-min(bounds, default=0), 0)


def floor_of(root: Root, settings: CapacitySettings) -> int:
    """What has to stay free: of the filesystem for disk, of the node's memory for memory."""
    if root.storage_class is StorageClass.MEMORY:
        return settings.memory.min_available
    share = root.capacity_bytes * settings.disk.min_free_percent // 100
    return max(settings.disk.min_free, share)


def limits_of(settings: CapacitySettings, storage_class: StorageClass) -> ClassCapacity:
    """The limits of a class."""
    return settings.disk if storage_class is StorageClass.DISK else settings.memory


def is_unmanaged(found: Found) -> bool:
    """Whether a key was published without an entry that asks for it."""
    return any(entry_id == UNMANAGED for entry_id, _ in found.made_for)


def _class_bounds(
    books: Books, storage_class: StorageClass, settings: CapacitySettings
) -> list[tuple[CapacityLimit, int | None]]:
    """What each limit of a class leaves; negative where it is passed already."""
    account, root = books.of_class(storage_class), books.roots.get(storage_class)
    budget = _left(limits_of(settings, storage_class).budget, account.committed)
    found: list[tuple[CapacityLimit, int | None]] = [(CapacityLimit.NODE_BUDGET, budget)]
    if root is None:
        return found
    floor = floor_of(root, settings)
    if storage_class is StorageClass.DISK:
        return [*found, (CapacityLimit.FREE_SPACE, root.free_bytes - account.unwritten - floor)]
    found.append((CapacityLimit.FREE_SPACE, root.free_bytes - account.unwritten))
    if root.memory_bytes is not None:
        found.append((CapacityLimit.MEMORY, root.memory_bytes - account.unwritten - floor))
    return found


def _free_inodes(root: Root | None, settings: CapacitySettings) -> int | None:
    # A filesystem without a fixed number of inodes reports none at all.
    if root is None or not root.inodes or root.storage_class is not StorageClass.DISK:
        return None
    return root.free_inodes - root.inodes * settings.disk.min_free_inodes_percent // 100


def _left(limit: int, taken: int) -> int | None:
    return limit - taken if limit else None


def _add(accounts: dict[Place, Account], place: Place, more: Account) -> None:
    accounts[place] = accounts.get(place, Account()) + more
