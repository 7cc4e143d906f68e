"""`weightlease-operator`: settings come from WEIGHTLEASE_OPERATOR_*, the cluster from the pod."""

from __future__ import annotations

import asyncio
import sys

import structlog
from pydantic import ValidationError

from weightlease_operator import logs
from weightlease_operator.election import LeadershipLost
from weightlease_operator.settings import Settings
from weightlease_operator.wiring import run

_log = structlog.get_logger(__name__)


def main() -> None:
    """Exit codes: 0 after a signal, 2 for settings that are wrong, 1 for any other end."""
    try:
        settings = Settings()
    except ValidationError as error:
        sys.stderr.write(f"WEIGHTLEASE_OPERATOR_ settings are wrong: {error}\n")
        sys.exit(2)
    logs.configure(settings.log_level)
    try:
        asyncio.run(run(settings))
    except asyncio.CancelledError:
        sys.exit(0)
    except BaseExceptionGroup as ended:
        lost, other = ended.split(LeadershipLost)
        if lost is None or other is not None:
            raise
        _log.error("another operator leads, or may", why=str(lost.exceptions[0]))
        sys.exit(1)


if __name__ == "__main__":
    main()
