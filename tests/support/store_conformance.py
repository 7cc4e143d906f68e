"""What every `HostWeightStore` promises, as tests that run against any of them.

Subclass `StoreConformance`, name the class Test…, and give it a fixture `world` that returns a
`StoreWorld`. Real processes are used wherever a promise is about processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

import store_child
from mortal import MORTAL
from sample_producer import ASSETS, PAYLOADS, SampleProducer, fine_tune, sha256
from weightlease.errors import FailureCode, WeightLeaseError
from weightlease.identity import WeightArtifactIdentity
from weightlease.lease import WeightLease
from weightlease.policy import Validation
from weightlease.reports import CleanupStatus, InventoryState, StoreResult, StoreStatus
from weightlease.store.protocol import FileWriter, HostWeightStore

PAYLOAD = "model.safetensors"
# Starting Python and importing the store; a promise is broken by a hang, not by a slow machine.
PATIENCE = 50


class StoreWorld(Protocol):
    """One store under test, reachable from this process and from others."""

    @property
    def maker(self) -> tuple[str, str]:
        """`module:callable` and its one argument: how a child process opens the store."""

    @property
    def root(self) -> Path:
        """Where the domain lies, for tests that damage it."""

    def open(self) -> HostWeightStore:
        """A handle of this process on the store."""


class Child:
    """A process that runs one operation of `store_child`."""

    def __init__(self, world: StoreWorld, operation: str, number: int = 0) -> None:
        command = [
            *MORTAL,
            sys.executable,
            store_child.__file__,
            *world.maker,
            operation,
            str(number),
        ]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.path.dirname(store_child.__file__)},
        )

    def hears(self) -> str:
        """The child's next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    def close(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def child(world: StoreWorld, operation: str, number: int = 0) -> Iterator[Child]:
    made = Child(world, operation, number)
    try:
        yield made
    finally:
        made.close()


def leased(result: StoreResult) -> WeightLease:
    assert result.lease is not None, result
    return result.lease


def code(result: StoreResult) -> FailureCode:
    assert result.failure is not None, result
    return result.failure.code


def read(path: str) -> bytes:
    return Path(path).read_bytes()


class StoreConformance:
    """The promises of lookups, builds, leases and cleanups."""

    # ---- hit and miss ----

    def test_an_artifact_that_nobody_built_is_a_miss(self, world: StoreWorld) -> None:
        assert world.open().lookup(fine_tune(0)).status is StoreStatus.MISS

    def test_a_build_gives_a_lease_and_later_lookups_hit(self, world: StoreWorld) -> None:
        store = world.open()
        built = store.get_or_build(SampleProducer())
        assert built.status is StoreStatus.BUILT
        with leased(built), leased(store.lookup(fine_tune(0))) as lease:
            assert lease.manifest.identity == fine_tune(0)

    def test_a_second_build_hits_without_producing(self, world: StoreWorld) -> None:
        store = world.open()
        leased(store.get_or_build(SampleProducer())).close()

        def never(writer: FileWriter) -> None:
            raise AssertionError("produced twice")

        again = store.get_or_build(SampleProducer(during=never))
        assert again.status in {StoreStatus.HIT, StoreStatus.JOINED}
        leased(again).close()

    def test_a_lease_reads_the_sources_bytes(self, world: StoreWorld) -> None:
        with leased(world.open().get_or_build(SampleProducer())) as lease:
            assert read(lease.files()[PAYLOAD]) == PAYLOADS[PAYLOAD]
            assert bytes(lease.buffer("encoder.weight")) == bytes(range(24))
            assert bytes(lease.buffer("empty")) == b""
            assert lease.manifest.files[0].sha256 == sha256(PAYLOADS[PAYLOAD])

    def test_assets_come_back_under_their_paths(self, world: StoreWorld) -> None:
        with leased(world.open().get_or_build(SampleProducer())) as lease:
            assert {path: read(lease.files()[path]) for path in ASSETS} == ASSETS
            assert [entry.path for entry in lease.manifest.assets] == sorted(ASSETS)

    # ---- exactness ----

    @pytest.mark.parametrize(
        "other",
        [fine_tune(1), fine_tune(0, tensor_parallel_size=2, tensor_parallel_rank=1)],
        ids=["fine-tune", "rank"],
    )
    def test_identities_of_one_shape_never_meet(
        self, world: StoreWorld, other: WeightArtifactIdentity
    ) -> None:
        store = world.open()
        leased(store.get_or_build(SampleProducer())).close()
        foreign = replace(SampleProducer().with_content(7), identity=other)
        assert store.lookup(foreign.identity).status is StoreStatus.MISS
        with leased(store.get_or_build(foreign)) as lease:
            assert bytes(lease.buffer("encoder.weight")) == bytes([7]) * 24
        with leased(store.lookup(fine_tune(0))) as lease:
            assert bytes(lease.buffer("encoder.weight")) == bytes(range(24))

    # ---- one builder ----

    def test_of_many_processes_one_builds_and_the_others_join(self, world: StoreWorld) -> None:
        world.open()
        children = [Child(world, "race") for _ in range(4)]
        try:
            words = [self._until_done(each) for each in children]
        finally:
            for each in children:
                each.close()
        assert sum("producing" in said for said in words) == 1
        assert [said[-1] for said in words].count("built") == 1
        assert {said[-1] for said in words} <= {"built", "joined", "hit"}

    def test_a_reader_sees_a_miss_while_a_build_runs(self, world: StoreWorld) -> None:
        store = world.open()
        with child(world, "build") as builder:
            assert builder.hears() == "producing"
            assert store.lookup(fine_tune(0)).status is StoreStatus.MISS
            builder.go_on()
            assert builder.hears() == "built"
        leased(store.lookup(fine_tune(0))).close()

    def test_waiting_for_a_builder_ends_typed_and_leaves_it_alone(self, world: StoreWorld) -> None:
        store = world.open()
        with child(world, "build") as builder:
            assert builder.hears() == "producing"
            late = store.get_or_build(SampleProducer(), timeout=0.1)
            assert late.status is StoreStatus.TIMEOUT
            assert code(late) is FailureCode.ACTIVE_BUILD_TIMEOUT
            builder.go_on()
            assert builder.hears() == "built"

    def test_a_killed_builder_leaves_nothing_that_can_be_seen(self, world: StoreWorld) -> None:
        store = world.open()
        with child(world, "build") as builder:
            assert builder.hears() == "producing"
            builder.kill()
        assert store.lookup(fine_tune(0)).status is StoreStatus.MISS
        rebuilt = store.get_or_build(SampleProducer())
        assert rebuilt.status is StoreStatus.BUILT
        leased(rebuilt).close()
        states = {entry.state for entry in store.inspect().inventory}
        assert states == {InventoryState.READY}

    # ---- producers that fail ----

    def test_a_producer_that_raises_publishes_nothing(self, world: StoreWorld) -> None:
        def fail(writer: FileWriter) -> None:
            raise RuntimeError("the source went away")

        self._fails(world, SampleProducer(during=fail), FailureCode.PRODUCER_FAILED)

    def test_a_file_that_ends_early_is_never_published(self, world: StoreWorld) -> None:
        whole = PAYLOADS[PAYLOAD]
        short = SampleProducer(payloads={PAYLOAD: whole[:-1]}, declared={PAYLOAD: len(whole)})
        self._fails(world, short, FailureCode.PRODUCER_FAILED)

    def test_a_file_that_is_too_long_is_cut_off(self, world: StoreWorld) -> None:
        declared = {PAYLOAD: len(PAYLOADS[PAYLOAD]) - 1}
        self._fails(world, SampleProducer(declared=declared), FailureCode.PRODUCER_FAILED)

    def test_more_than_the_announced_total_is_refused(self, world: StoreWorld) -> None:
        total = len(PAYLOADS[PAYLOAD])
        self._fails(world, SampleProducer(total_bytes=total), FailureCode.PRODUCER_FAILED)

    @pytest.mark.parametrize("name", [PAYLOAD, "config.json"])
    def test_bytes_that_differ_from_the_sources_digest_are_refused(
        self, world: StoreWorld, name: str
    ) -> None:
        stated = {name: sha256(b"something else")}
        self._fails(world, SampleProducer(stated=stated), FailureCode.CHECKSUM_MISMATCH)

    def test_a_payload_that_lies_about_itself_is_refused(self, world: StoreWorld) -> None:
        damaged = PAYLOADS[PAYLOAD] + b"tail"
        producer = SampleProducer(payloads={PAYLOAD: damaged})
        self._fails(world, producer, FailureCode.MANIFEST_CORRUPT)

    @pytest.mark.parametrize("paths", [(PAYLOAD,), (f"{PAYLOAD}/config.json",), ("a", "a/b")])
    def test_files_that_no_lease_could_lay_out_are_never_published(
        self, world: StoreWorld, paths: tuple[str, ...]
    ) -> None:
        clashing = SampleProducer(assets=dict.fromkeys(paths, b"1"))
        assert code(world.open().get_or_build(clashing)) is FailureCode.MANIFEST_CORRUPT
        assert world.open().lookup(fine_tune(0)).status is StoreStatus.MISS

    def test_an_error_of_the_writer_reaches_the_producer(self, world: StoreWorld) -> None:
        seen: list[WeightLeaseError] = []

        def overflow(writer: FileWriter) -> None:
            try:
                writer.write(bytes(len(PAYLOADS[PAYLOAD])))
            except WeightLeaseError as error:
                seen.append(error)
                raise

        self._fails(world, SampleProducer(during=overflow), FailureCode.PRODUCER_FAILED)
        assert seen

    # ---- leases and cleanup ----

    def test_cleanup_waits_for_nobody_and_removes_nothing_in_use(self, world: StoreWorld) -> None:
        store = world.open()
        lease = leased(store.get_or_build(SampleProducer()))
        assert store.cleanup(lease.key).status is CleanupStatus.ACTIVE_LEASE
        assert bytes(lease.buffer("encoder.weight")) == bytes(range(24))
        leased(store.lookup(fine_tune(0))).close()
        lease.close()
        removed = store.cleanup(lease.key)
        assert removed.status is CleanupStatus.REMOVED
        assert removed.freed_bytes >= len(PAYLOADS[PAYLOAD])
        assert store.lookup(fine_tune(0)).status is StoreStatus.MISS
        assert store.cleanup(lease.key).status is CleanupStatus.ABSENT
        assert store.inspect().inventory == ()

    def test_a_view_keeps_the_artifact_after_its_lease_was_closed(self, world: StoreWorld) -> None:
        store = world.open()
        lease = leased(store.get_or_build(SampleProducer()))
        array = lease.array("encoder.weight")
        lease.close()
        assert store.cleanup(lease.key).status is CleanupStatus.ACTIVE_LEASE
        assert array.tobytes() == bytes(range(24))
        del array
        assert store.cleanup(lease.key).status is CleanupStatus.REMOVED

    def test_a_lease_of_another_process_counts_until_that_process_ends(
        self, world: StoreWorld
    ) -> None:
        store = world.open()
        key = fine_tune(0).key
        leased(store.get_or_build(SampleProducer())).close()
        with child(world, "lease") as holder:
            assert holder.hears() == "hit"
            assert store.cleanup(key).status is CleanupStatus.ACTIVE_LEASE
            holder.kill()
            assert store.cleanup(key).status is CleanupStatus.REMOVED

    def test_cleanup_leaves_a_running_build_alone(self, world: StoreWorld) -> None:
        store = world.open()
        with child(world, "build") as builder:
            assert builder.hears() == "producing"
            assert store.cleanup(fine_tune(0).key).status is CleanupStatus.ACTIVE_BUILD
            builder.go_on()
            assert builder.hears() == "built"

    # ---- damage ----

    def test_a_flipped_byte_is_found_denied_and_rebuilt(self, world: StoreWorld) -> None:
        store = world.open()
        key = fine_tune(0).key
        leased(store.get_or_build(SampleProducer())).close()
        flip_last_byte(world.root / "artifacts" / key / PAYLOAD)
        found = store.lookup(fine_tune(0), validation=Validation.FULL_CHECKSUM)
        assert (found.status, code(found)) == (StoreStatus.INVALID, FailureCode.CHECKSUM_MISMATCH)
        denied = store.lookup(fine_tune(0))
        assert (denied.status, code(denied)) == (StoreStatus.INVALID, FailureCode.ARTIFACT_DENIED)
        rebuilt = store.get_or_build(SampleProducer())
        assert rebuilt.status is StoreStatus.BUILT
        with leased(rebuilt) as lease:
            assert read(lease.files()[PAYLOAD]) == PAYLOADS[PAYLOAD]
        states = [entry.state for entry in store.inspect().inventory]
        assert states == [InventoryState.QUARANTINED, InventoryState.READY]

    # ---- inspection ----

    def test_an_inspection_lists_what_is_ready_with_its_size(self, world: StoreWorld) -> None:
        store = world.open()
        leased(store.get_or_build(SampleProducer())).close()
        found = store.inspect()
        (entry,) = found.inventory
        assert (entry.artifact_key, entry.state) == (fine_tune(0).key, InventoryState.READY)
        assert entry.size_bytes >= len(PAYLOADS[PAYLOAD]) + len(ASSETS["1_Pooling/config.json"])
        assert found.scope == "node"
        assert found.store_bytes >= entry.size_bytes

    def _fails(self, world: StoreWorld, producer: SampleProducer, expected: FailureCode) -> None:
        store = world.open()
        failed = store.get_or_build(producer)
        assert (failed.status, code(failed)) == (StoreStatus.FAILED, expected)
        assert store.lookup(producer.identity).status is StoreStatus.MISS
        rebuilt = store.get_or_build(SampleProducer(producer.identity))
        assert rebuilt.status is StoreStatus.BUILT
        leased(rebuilt).close()

    @staticmethod
    def _until_done(each: Child) -> list[str]:
        output, _ = each.process.communicate("\n", timeout=PATIENCE)
        return str(output).split()


def flip_last_byte(path: Path) -> None:
    """Damage a published file as failing storage would: same inode, size and mode."""
    mode = path.stat().st_mode
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[-1] ^= 0xFF
    with path.open("r+b") as file:
        file.write(data)
    path.chmod(mode)
