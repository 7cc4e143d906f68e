"""`weightlease-operator`: settings come from WEIGHTLEASE_OPERATOR_*, the cluster from the pod."""

from __future__ import annotations

import asyncio
import sys

from pydantic import ValidationError

from weightlease_operator import logs
from weightlease_operator.settings import Settings
from weightlease_operator.wiring import run


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


if __name__ == "__main__":
    main()
