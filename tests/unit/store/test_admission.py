"""Serialized admission: builders of different keys take turns, readers and joiners do not wait."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sample_producer import SampleProducer, fine_tune
from weightlease.errors import FailureCode, WeightLeaseError
from weightlease.policy import BuildAdmission, CapacityPolicy, DomainPolicy
from weightlease.reports import StoreResult, StoreStatus
from weightlease.store.artifact import OpenArtifact
from weightlease.store.local import LocalStore
from weightlease.store.protocol import FileWriter
from weightlease.store.publication import Publication

LIMIT = 10**9
TOTAL = 1 << 20


def serialized(root: Path, *, limit: int = LIMIT) -> LocalStore:
    capacity = CapacityPolicy(max_store_bytes=limit, build_admission=BuildAdmission.SERIALIZED)
    return LocalStore(root, DomainPolicy(capacity=capacity))


def begun(made: Publication | OpenArtifact) -> Publication:
    assert isinstance(made, Publication)
    return made


def closed(result: StoreResult) -> StoreStatus:
    assert result.lease is not None, result.failure
    result.lease.close()
    return result.status


def test_builders_of_different_keys_take_turns(tmp_path: Path) -> None:
    store = serialized(tmp_path / "domain")
    first = begun(store.begin(fine_tune(0), TOTAL))
    late = store.get_or_build(SampleProducer(fine_tune(1)), timeout=0.1)
    assert late.status is StoreStatus.TIMEOUT
    assert late.failure is not None
    assert late.failure.code is FailureCode.ACTIVE_BUILD_TIMEOUT
    first.abort()
    assert closed(store.get_or_build(SampleProducer(fine_tune(1)))) is StoreStatus.BUILT


def test_builders_of_different_keys_run_at_once_where_admission_is_concurrent(
    store: LocalStore,
) -> None:
    first = begun(store.begin(fine_tune(0), TOTAL))
    assert closed(store.get_or_build(SampleProducer(fine_tune(1)), timeout=5)) is StoreStatus.BUILT
    first.abort()


def test_a_warm_hit_waits_for_no_builder(tmp_path: Path) -> None:
    store = serialized(tmp_path / "domain")
    closed(store.get_or_build(SampleProducer(fine_tune(0))))
    other = begun(store.begin(fine_tune(1), TOTAL))
    assert closed(store.lookup(fine_tune(0), timeout=0.1)) is StoreStatus.HIT
    assert closed(store.get_or_build(SampleProducer(fine_tune(0)), timeout=0.1)) is StoreStatus.HIT
    other.abort()


def test_a_builder_that_fails_admits_the_next(tmp_path: Path) -> None:
    def fail(writer: FileWriter) -> None:
        raise RuntimeError("out of luck")

    store = serialized(tmp_path / "domain")
    assert store.get_or_build(SampleProducer(during=fail)).status is StoreStatus.FAILED
    assert closed(store.get_or_build(SampleProducer(fine_tune(1)), timeout=5)) is StoreStatus.BUILT


def test_each_builder_is_checked_against_what_the_one_before_it_left(tmp_path: Path) -> None:
    store = serialized(tmp_path / "domain", limit=2 * TOTAL)
    small = SampleProducer(fine_tune(0), total_bytes=TOTAL)
    closed(store.get_or_build(small))
    full = store.get_or_build(SampleProducer(fine_tune(1), total_bytes=2 * TOTAL))
    assert full.failure is not None
    assert full.failure.code is FailureCode.STORE_LIMIT_EXCEEDED


def test_the_policy_file_states_it_in_a_version_of_its_own(tmp_path: Path) -> None:
    store = serialized(tmp_path / "domain")
    stated = json.loads((Path(store.root) / "domain-policy.json").read_bytes())
    assert (stated["schema_version"], stated["build_admission"]) == (2, "serialized")
    assert serialized(tmp_path / "domain").domain.uuid == store.domain.uuid


@pytest.mark.parametrize("first", [BuildAdmission.CONCURRENT, BuildAdmission.SERIALIZED])
def test_the_first_creators_admission_is_authoritative(
    tmp_path: Path, first: BuildAdmission
) -> None:
    for admission in (first, *(each for each in BuildAdmission if each is not first)):
        policy = DomainPolicy(
            capacity=CapacityPolicy(max_store_bytes=LIMIT, build_admission=admission)
        )
        if admission is first:
            LocalStore(tmp_path / "domain", policy)
            continue
        with pytest.raises(WeightLeaseError) as caught:
            LocalStore(tmp_path / "domain", policy)
        assert caught.value.failure.code is FailureCode.DOMAIN_POLICY_MISMATCH


def test_serialized_admission_needs_a_limit_to_hold_builders_to() -> None:
    with pytest.raises(WeightLeaseError, match="needs max_store_bytes"):
        CapacityPolicy(build_admission=BuildAdmission.SERIALIZED)
