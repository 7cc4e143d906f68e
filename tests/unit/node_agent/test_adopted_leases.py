"""A sweep that finds a lease file before its grant is noted: one lease, one pin."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from sample_producer import SampleProducer
from weightlease.lease_record import Holder, HolderKind
from weightlease.names import StorageClass
from weightlease.policy import Validation
from weightlease_node_agent.domains import AgentDomain, Domains, Place
from weightlease_node_agent.executor import Run
from weightlease_node_agent.leases import Leases
from weightlease_node_agent.pins import Pins

ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")
HOLDER = Holder(HolderKind.UID, "default", uid=1, pid=2)
KEY = SampleProducer().identity.key


class InterruptedRun(Run):
    """Runs on a thread; once armed, something else happens before the caller sees the result."""

    def __init__(self) -> None:
        super().__init__("test", 1)
        self.function = ""
        self.then: Callable[[], Awaitable[None]] | None = None

    async def __call__(
        self,
        function: Callable[ParamsT, ResultT],
        *args: ParamsT.args,
        **kwargs: ParamsT.kwargs,
    ) -> ResultT:
        result = await super().__call__(function, *args, **kwargs)
        if self.then is not None and function.__name__ == self.function:
            then, self.then = self.then, None
            await then()
        return result


@pytest.fixture
def domain(tmp_path: Path) -> AgentDomain:
    domains = Domains({StorageClass.DISK: tmp_path}, {}, "node")
    found = domains.open(Place("default", StorageClass.DISK))
    built = found.store.get_or_build(SampleProducer())
    assert built.lease is not None
    built.lease.close()
    return found


@pytest.fixture
def run() -> Iterator[InterruptedRun]:
    made = InterruptedRun()
    yield made
    made.close()


async def test_a_lease_that_a_sweep_adopts_while_it_is_granted_is_one_lease_with_one_pin(
    domain: AgentDomain, run: InterruptedRun
) -> None:
    changes: list[int] = []
    leases = Leases(
        Pins(run, run, 5.0), run, lambda: datetime.now(UTC), lambda _, delta: changes.append(delta)
    )
    swept: list[int] = []

    async def sweep() -> None:
        await leases.sweep([domain])
        swept.append(len(leases.of(domain, KEY)))

    run.function, run.then = "_open_all", sweep
    grant = await leases.grant(domain, KEY, HOLDER, Validation.MANIFEST_AND_METADATA, assets=True)
    assert swept == [1], "the sweep has adopted it in between"
    assert leases.of(domain, KEY) == [grant.lease.record]
    assert grant.pin.users == 1
    assert changes == [1]
    for descriptor in grant.descriptors:
        os.close(descriptor)
    await leases.sweep([domain])
    assert leases.of(domain, KEY) == []
    assert grant.pin.users == 0
    assert changes == [1, -1]
