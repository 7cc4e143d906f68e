"""The process a Job runs: exit codes, the termination message, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hub_setup import TOKEN, HubSetup
from hubserver import Fault, FaultKind
from mortal import MORTAL
from tensor_files import tensor_file
from weightlease.names import ENV_PRODUCER_REQUEST, ENV_SOCKET
from weightlease.producer.request import (
    HubSource,
    PathSource,
    ProducerRequest,
    RequestedComponent,
    RequestedProducer,
    encode_request,
)
from weightlease.producer.snapshot import SNAPSHOT
from weightlease.reasons import EXIT_STATUS, Reason, TerminationMessage, decode_termination

ABI = RequestedProducer(*msgspec.structs.astuple(SNAPSHOT))


class Job:
    """One producer process in a folder of its own."""

    def __init__(self, root: Path) -> None:
        self.termination = root / "termination-log"
        self.scratch = root / "job-scratch"
        self.scratch.mkdir()
        self.root = root

    def request(self, source: HubSource | PathSource, **more: Any) -> str:
        request = ProducerRequest(
            1,
            "a/m:model",
            source,
            RequestedComponent("model"),
            ABI,
            scratch=str(self.scratch),
            **more,
        )
        return encode_request(request)

    def start(self, request: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*MORTAL, sys.executable, "-m", "weightlease.producer"],
            cwd=self.root,
            env={
                "PATH": os.environ["PATH"],
                "HOME": "/nonexistent",
                ENV_PRODUCER_REQUEST: request,
                ENV_SOCKET: str(self.root / "absent.sock"),
                "WEIGHTLEASE_TERMINATION_LOG": str(self.termination),
                **environment,
            },
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ended(self, process: subprocess.Popen[str]) -> tuple[TerminationMessage, str]:
        """The message and stderr; the exit code must be the reason's."""
        _, stderr = process.communicate(timeout=60)
        message = decode_termination(self.termination.read_text())
        assert message is not None, stderr
        assert process.returncode == EXIT_STATUS[message.reason].code, stderr
        last = json.loads(stderr.splitlines()[-1])
        assert (last["event"], last["reason"]) == ("ended", message.reason)
        return message, stderr


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.mark.parametrize("request_text", ["", "{}", "[]", '{"schemaVersion": 2}'])
def test_a_request_that_is_none_ends_as_request_invalid(job: Job, request_text: str) -> None:
    message, _ = job.ended(job.start(request_text))
    assert message.reason is Reason.REQUEST_INVALID


def test_a_missing_source_ends_as_source_not_found(job: Job) -> None:
    message, _ = job.ended(job.start(job.request(PathSource("/absent", "claim"))))
    assert message.reason is Reason.SOURCE_NOT_FOUND
    assert not message.retryable


def test_a_termination_log_that_cannot_be_written_does_not_change_the_ending(job: Job) -> None:
    process = job.start("", WEIGHTLEASE_TERMINATION_LOG="/nonexistent/log")
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == EXIT_STATUS[Reason.REQUEST_INVALID].code, stderr


def test_a_hub_job_that_is_refused_keeps_the_token_out_of_everything_it_writes(
    job: Job, private_hub: HubSetup
) -> None:
    private_hub.server.fault(Fault(FaultKind.STATUS, "config.json", times=99, status=403))
    commit = private_hub.repository.commit
    source = HubSource("org/small", commit, endpoint=private_hub.server.endpoint)
    message, stderr = job.ended(job.start(job.request(source), HF_TOKEN=TOKEN))
    assert message.reason is Reason.SOURCE_UNAUTHORIZED
    assert TOKEN not in stderr + job.termination.read_text()
    assert [path for path in job.scratch.rglob("*") if path.is_file()] == []


def test_sigterm_ends_as_interrupted_and_empties_the_scratch_folder(
    job: Job, hub: HubSetup, folder: Path
) -> None:
    stall = Fault(FaultKind.STALL, "config.json", method="GET")
    hub.server.fault(stall)
    source = HubSource("org/small", hub.repository.commit, endpoint=hub.server.endpoint)
    process = job.start(job.request(source))
    hub.server.wait_for(lambda seen: seen.method == "GET" and seen.path.endswith("config.json"))
    process.send_signal(signal.SIGTERM)
    message, _ = job.ended(process)
    assert message.reason is Reason.INTERRUPTED
    assert message.retryable
    assert [path for path in job.scratch.rglob("*") if path.is_file()] == []


def test_a_job_without_an_agent_waits_and_is_interrupted_in_time(job: Job, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(tensor_file({"w": b"1"}))
    process = job.start(job.request(PathSource(str(model), "claim")))
    assert process.stderr is not None
    events: list[dict[str, str]] = []
    while not events or events[-1]["event"] != "waiting":
        events.append(json.loads(process.stderr.readline()))
    assert "domain_unavailable" in events[-1]["reason"]
    process.send_signal(signal.SIGTERM)
    message, _ = job.ended(process)
    assert message.reason is Reason.INTERRUPTED
