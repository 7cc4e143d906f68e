"""Whatever publications do while the agent looks at its disks, no limit is ever passed.

The model keeps the true bytes. A decision is made on a look that began earlier: publications write,
end and are removed between the look's beginning, what it sees of each domain, and the decision.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from weightlease.names import StorageClass
from weightlease.reports import InventoryState
from weightlease_node_agent.capacity_settings import CapacitySettings
from weightlease_node_agent.domains import Place
from weightlease_node_agent.ledger import Claim, Ledger, refusal
from weightlease_node_agent.survey import Found, Root, Survey

BUDGET, QUOTA, DISK, FLOOR = 1000, 700, 1300, 300
PLACES = tuple(Place(name, StorageClass.DISK) for name in ("a", "b"))
LIMITS = CapacitySettings.model_validate(
    {"disk": {"budget": BUDGET, "namespaceQuota": QUOTA, "minFree": FLOOR}}
)

Event = tuple[str, int]
EVENTS = st.tuples(st.sampled_from(("write", "publish", "abort", "remove")), st.integers(0, 7))


@dataclass
class Running:
    """A publication in progress: `number` is its reservation, `staged` what it has written."""

    claim: Claim
    number: int
    staged: int = 0


class LedgerMachine(RuleBasedStateMachine):
    """One agent, two namespaces, one disk that others fill too."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.running: list[Running] = []
        self.published: dict[tuple[Place, str], int] = {}
        self.others = 200
        self.keys = 0

    @rule(
        place=st.sampled_from(PLACES),
        total=st.sampled_from((100, 300, 500, 700)),
        meanwhile=st.lists(st.lists(EVENTS, max_size=3), min_size=4, max_size=4),
    )
    def admit(self, place: Place, total: int, meanwhile: list[list[Event]]) -> None:
        """One decision; events happen before, between and after the looks at the two domains."""
        self.keys += 1
        claim = Claim(place, f"{self.keys:064x}", total)
        self.happen(meanwhile[0])
        since = self.ledger.look_begins()
        found: list[Found] = []
        for each, events in zip(PLACES, meanwhile[1:3], strict=True):
            self.happen(events)
            found += self.found(each)
        root = Root(StorageClass.DISK, "/", "ext4", DISK, self.free_bytes())
        survey = Survey(tuple(found), roots=(root,), domains=tuple((each, "") for each in PLACES))
        self.happen(meanwhile[3])
        self.ledger.forget_ended(since)
        if refusal(self.ledger.books(survey, since), claim, LIMITS, {}) is None:
            self.running.append(Running(claim, self.ledger.reserve(claim)))

    def happen(self, events: list[Event]) -> None:
        """What goes on meanwhile, to publications in progress and to artifacts."""
        for event, which in events:
            if event == "remove" and self.published:
                keys = sorted(self.published, key=str)
                del self.published[keys[which % len(keys)]]
            if event == "remove" or not self.running:
                continue
            publication = self.running[which % len(self.running)]
            if event == "write":
                publication.staged += (publication.claim.total_bytes - publication.staged) // 2
                continue
            self.running.remove(publication)
            if event == "publish":
                place, key = publication.claim.place, publication.claim.key
                self.published[place, key] = publication.claim.total_bytes
            self.ledger.end(publication.number)

    @rule(size=st.sampled_from((0, 200, 400)))
    def others_write(self, size: int) -> None:
        """Somebody else fills the disk, or clears it; what has begun may still be written."""
        if not self.running:
            self.others = size

    # ---- what holds ----

    @invariant()
    def the_budget_and_each_quota_hold_even_if_all_that_is_promised_is_written(self) -> None:
        assert sum(self.promised(place) for place in PLACES) <= BUDGET
        assert all(self.promised(place) <= QUOTA for place in PLACES)

    @invariant()
    def what_is_written_never_takes_the_floor(self) -> None:
        if self.running:
            unwritten = sum(each.claim.total_bytes - each.staged for each in self.running)
            assert self.free_bytes() - unwritten >= FLOOR

    def promised(self, place: Place) -> int:
        running = sum(each.claim.total_bytes for each in self.running if each.claim.place == place)
        return running + sum(size for (at, _), size in self.published.items() if at == place)

    def free_bytes(self) -> int:
        staged = sum(each.staged for each in self.running)
        return DISK - self.others - staged - sum(self.published.values())

    def found(self, place: Place) -> list[Found]:
        rows = [
            Found(place, key, InventoryState.READY, key, size)
            for (at, key), size in self.published.items()
            if at == place
        ]
        staged = [
            Found(place, each.claim.key, InventoryState.TEMPORARY, each.claim.key, each.staged)
            for each in self.running
            if each.claim.place == place
        ]
        return rows + staged


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=200, stateful_step_count=20, deadline=None)
