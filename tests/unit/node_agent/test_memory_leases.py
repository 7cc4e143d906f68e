"""Leases of a tmpfs are opened on the loop itself, except when somebody holds the file's lock."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from sample_producer import ASSETS, PAYLOADS, SampleProducer
from weightlease.lease_record import Holder, HolderKind, LeaseRecord
from weightlease.names import StorageClass
from weightlease.policy import Validation
from weightlease.store.leases import LeaseDirectory
from weightlease_node_agent.domains import AgentDomain, Domains, Place
from weightlease_node_agent.executor import Run
from weightlease_node_agent.leases import Leases
from weightlease_node_agent.pins import Pins

ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")
HOLDER = Holder(HolderKind.UID, "default", uid=1, pid=2)
METADATA = Validation.MANIFEST_AND_METADATA
KEY = SampleProducer().identity.key
DESCRIPTORS = 2 + len(PAYLOADS) + len(ASSETS)


class CountingRun(Run):
    """Runs on a thread, counts, and first calls `before`."""

    def __init__(self) -> None:
        super().__init__("test", 1)
        self.calls = 0
        self.before: Callable[[], None] = lambda: None

    async def __call__(
        self,
        function: Callable[ParamsT, ResultT],
        *args: ParamsT.args,
        **kwargs: ParamsT.kwargs,
    ) -> ResultT:
        self.calls += 1
        self.before()
        return await super().__call__(function, *args, **kwargs)


@pytest.fixture
def domain() -> Iterator[AgentDomain]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        domains = Domains({StorageClass.MEMORY: Path(root)}, {}, "node")
        found = domains.open(Place("default", StorageClass.MEMORY))
        built = found.store.get_or_build(SampleProducer())
        assert built.lease is not None
        built.lease.close()
        yield found


@pytest.fixture
def run() -> Iterator[CountingRun]:
    made = CountingRun()
    yield made
    made.close()


@pytest.fixture
def leases(run: CountingRun) -> Leases:
    return Leases(Pins(run, run, 5.0), run, lambda: datetime.now(UTC))


def close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


async def test_a_pinned_artifact_is_leased_without_a_thread(
    domain: AgentDomain, run: CountingRun, leases: Leases
) -> None:
    close((await leases.grant(domain, KEY, HOLDER, METADATA, assets=True)).descriptors)
    opened = run.calls
    grant = await leases.grant(domain, KEY, HOLDER, METADATA, assets=True)
    assert run.calls == opened
    assert len(grant.descriptors) == DESCRIPTORS
    assert domain.store.leases.holders(KEY) == (grant.lease.record,)
    close(grant.descriptors)
    assert domain.store.leases.holders(KEY) == ()


async def test_a_probed_lease_file_is_waited_for_on_a_thread(
    domain: AgentDomain, run: CountingRun, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    close((await leases.grant(domain, KEY, HOLDER, METADATA, assets=True)).descriptors)
    opened, write, probes = run.calls, LeaseDirectory.grant, []

    def write_and_probe(self: LeaseDirectory, record: LeaseRecord) -> None:
        write(self, record)
        probe = os.open(domain.path / "leases" / record.file_name, os.O_RDONLY)
        fcntl.flock(probe, fcntl.LOCK_EX)
        probes.append(probe)
        monkeypatch.undo()

    monkeypatch.setattr(LeaseDirectory, "grant", write_and_probe)
    run.before = lambda: close([probes.pop() for _ in probes[:]])
    grant = await leases.grant(domain, KEY, HOLDER, METADATA, assets=True)
    assert run.calls == opened + 1
    assert domain.store.leases.holders(KEY) == (grant.lease.record,)
    close(grant.descriptors)
