"""`python -m weightlease.producer`: what a prewarm Job runs.

Reads WEIGHTLEASE_PRODUCER_REQUEST (see `request`), HF_TOKEN and HF_ENDPOINT; writes progress to
stderr and a typed message to /dev/termination-log (or WEIGHTLEASE_TERMINATION_LOG); ends with the
exit code of its reason (see `weightlease.reasons`). Writes nowhere but to the request's scratch.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from weightlease.client import AgentStore
from weightlease.names import ENV_PRODUCER_REQUEST
from weightlease.producer.job import JobEnvironment, run_job
from weightlease.producer.outcome import Interrupted, ending
from weightlease.producer.progress import Reporter
from weightlease.producer.request import decode_request
from weightlease.reasons import EXIT_STATUS, TerminationMessage, encode_termination

ENV_TERMINATION_LOG = "WEIGHTLEASE_TERMINATION_LOG"
TERMINATION_LOG = "/dev/termination-log"


def main() -> int:
    """Run the Job; returns the exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    reporter = Reporter(sys.stderr)
    try:
        message = _run(reporter)
    except (Exception, Interrupted) as error:  # noqa: BLE001 - the process ends with its reason
        message = ending(error)
    # From here on the outcome stands, whatever signal arrives.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    reporter.close()
    _tell(message, reporter)
    return EXIT_STATUS[message.reason].code


def _run(reporter: Reporter) -> TerminationMessage:
    request = decode_request(os.environ.get(ENV_PRODUCER_REQUEST, ""))
    _settle_hub_client(request.scratch)
    environment = JobEnvironment(
        hub_endpoint=os.environ.get("HF_ENDPOINT", ""),
        hub_token=os.environ.get("HF_TOKEN", "").strip(),
    )
    with AgentStore() as store:
        return run_job(request, store, environment, reporter)


def _settle_hub_client(scratch: str) -> None:
    """Settings that huggingface_hub reads once, when it is imported."""
    os.environ.update(
        {
            "HF_HOME": os.path.join(scratch, "hub-home"),
            "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_VERBOSITY": "error",
        }
    )


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise Interrupted


def _tell(message: TerminationMessage, reporter: Reporter) -> None:
    encoded = encode_termination(message)
    path = os.environ.get(ENV_TERMINATION_LOG, TERMINATION_LOG)
    try:
        with open(path, "w", encoding="utf-8") as log:
            log.write(encoded)
    except OSError as error:
        reporter.event("termination-log-unwritable", path=path, error=str(error))
    reporter.event(
        "ended",
        reason=str(message.reason),
        message=message.message,
        key=message.key,
        exitCode=EXIT_STATUS[message.reason].code,
    )


if __name__ == "__main__":
    sys.exit(main())
