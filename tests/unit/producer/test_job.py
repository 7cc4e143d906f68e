"""A Job does exactly what its request says, or ends with the reason why not."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import pytest

from fake_agent import MANIFEST_SHA256, FakeAgent
from tensor_files import tensor_file
from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.producer.job import JobEnvironment, run_job
from weightlease.producer.progress import Reporter
from weightlease.producer.request import (
    PathSource,
    ProducerRequest,
    RequestedComponent,
    RequestedProducer,
)
from weightlease.producer.snapshot import SNAPSHOT
from weightlease.reasons import Reason, TerminationMessage

ABI = RequestedProducer(*msgspec.structs.astuple(SNAPSHOT))
UNKNOWN_JOB = WeightLeaseError.of(
    Stage.ACCESS, FailureCode.PRODUCER_UNAVAILABLE, "this Job is not known yet", retryable=True
)
FORBIDDEN = WeightLeaseError.of(Stage.ACCESS, FailureCode.PERMISSION_DENIED, "no")


class FakeTime:
    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


@pytest.fixture
def request_of(tmp_path: Path) -> ProducerRequest:
    (tmp_path / "model.safetensors").write_bytes(tensor_file({"w": b"1234"}))
    (tmp_path / "config.json").write_text("{}")
    return ProducerRequest(
        1, "team-a/m:model", PathSource(str(tmp_path), "claim"), RequestedComponent("model"), ABI
    )


def run(
    request: ProducerRequest, agent: FakeAgent, time: FakeTime | None = None
) -> TerminationMessage:
    time = time or FakeTime()
    environment = JobEnvironment(clock=time.clock, sleep=time.sleep)
    return run_job(request, agent, environment, Reporter(io.StringIO()))


def test_a_job_streams_the_source_and_reports_key_digest_and_bytes(
    request_of: ProducerRequest,
) -> None:
    agent = FakeAgent()
    request = msgspec.structs.replace(request_of, storage_class="memory")
    message = run(request, agent)
    publication = agent.publications[0]
    assert message.reason is Reason.PUBLISHED
    assert (message.key, message.manifest_sha256) == (publication.key, MANIFEST_SHA256)
    assert message.bytes == len(publication.payloads["model.safetensors"])
    assert agent.storage_classes == ["memory"]


def test_the_model_is_named_after_the_claim_unless_a_name_is_stated(
    request_of: ProducerRequest,
) -> None:
    unnamed, named = FakeAgent(), FakeAgent()
    run(request_of, unnamed)
    run(msgspec.structs.replace(request_of, model_id="claim"), named)
    assert unnamed.publications[0].key == named.publications[0].key
    other = FakeAgent()
    run(msgspec.structs.replace(request_of, model_id="other"), other)
    assert other.publications[0].key != named.publications[0].key


def test_an_artifact_that_is_present_is_not_streamed_again(request_of: ProducerRequest) -> None:
    agent = FakeAgent(present=True)
    message = run(request_of, agent)
    assert message.reason is Reason.ALREADY_PUBLISHED
    assert message.manifest_sha256 == MANIFEST_SHA256
    assert agent.publications[0].payloads == {}


def test_the_canarys_manifest_digest_goes_with_the_publication(request_of: ProducerRequest) -> None:
    agent = FakeAgent()
    run(msgspec.structs.replace(request_of, expected_manifest_sha256=MANIFEST_SHA256), agent)
    assert agent.publications[0].finalized == MANIFEST_SHA256


def test_a_present_artifact_with_another_manifest_is_a_content_mismatch(
    request_of: ProducerRequest,
) -> None:
    request = msgspec.structs.replace(request_of, expected_manifest_sha256="0" * 64)
    with pytest.raises(WeightLeaseError) as caught:
        run(request, FakeAgent(present=True))
    assert caught.value.failure.code is FailureCode.CONTENT_MISMATCH


def test_another_key_than_the_canarys_never_reaches_the_agent(request_of: ProducerRequest) -> None:
    agent = FakeAgent()
    with pytest.raises(WeightLeaseError) as caught:
        run(msgspec.structs.replace(request_of, expected_key="0" * 64), agent)
    assert caught.value.failure.code is FailureCode.IDENTITY_MISMATCH
    assert agent.publications == []


def test_a_job_waits_for_an_agent_that_does_not_know_it_yet(request_of: ProducerRequest) -> None:
    time = FakeTime()
    message = run(request_of, FakeAgent(*[UNKNOWN_JOB] * 5), time)
    assert message.reason is Reason.PUBLISHED
    assert 0 < time.now < 60


def test_patience_ends(request_of: ProducerRequest) -> None:
    time = FakeTime()
    with pytest.raises(WeightLeaseError) as caught:
        run(request_of, FakeAgent(*[UNKNOWN_JOB] * 1000), time)
    assert caught.value is UNKNOWN_JOB
    assert time.now == pytest.approx(60)


def test_a_refusal_for_good_is_not_asked_again(request_of: ProducerRequest) -> None:
    time = FakeTime()
    with pytest.raises(WeightLeaseError):
        run(request_of, FakeAgent(FORBIDDEN), time)
    assert time.now == 0


@pytest.mark.parametrize(
    "change",
    [
        {"representation": "final-bf16"},
        {"producer": msgspec.structs.replace(ABI, version="2")},
        {"producer": msgspec.structs.replace(ABI, implementation_fingerprint="sha256:image")},
    ],
)
def test_an_abi_that_this_image_does_not_implement_is_refused(
    request_of: ProducerRequest, change: dict[str, object]
) -> None:
    with pytest.raises(WeightLeaseError) as caught:
        run(msgspec.structs.replace(request_of, **change), FakeAgent())
    assert caught.value.failure.code is FailureCode.INVALID_CONFIG


def test_progress_is_told_in_json_lines_at_intervals_and_at_the_end(
    request_of: ProducerRequest,
) -> None:
    stream = io.StringIO()
    run_job(request_of, FakeAgent(), JobEnvironment(), Reporter(stream))
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    ends = [event for event in events if event["event"] == "progress"]
    assert [event["phase"] for event in ends] == ["hash", "publish"]
    assert all(event["doneBytes"] == event["totalBytes"] for event in ends)
