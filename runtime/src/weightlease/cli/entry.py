"""From the command line to an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing

from weightlease.cli import commands
from weightlease.cli.arguments import parse
from weightlease.cli.exit_codes import ExitCode, exit_code
from weightlease.cli.output import print_error, print_problem
from weightlease.cli.roots import require_apart
from weightlease.cli.targets import AgentTarget, RootTarget, Target
from weightlease.errors import WeightLeaseError

_COMMANDS: dict[str, Callable[[argparse.Namespace, Target], int]] = {
    "publish": commands.publish,
    "ls": commands.ls,
    "inspect": commands.inspect,
    "verify": commands.verify,
    "lease": commands.lease,
    "cleanup": commands.cleanup,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (see `exit_codes`)."""
    _require_standard_streams()
    parsed = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        with closing(_target(parsed)) as target:
            return int(_COMMANDS[parsed.command](parsed, target))
    except WeightLeaseError as error:
        print_error(error, parsed.output)
        return exit_code(error)
    except OSError as error:
        print_problem(str(error), parsed.output)
        return ExitCode.FAILED
    except KeyboardInterrupt:
        print_problem("interrupted", parsed.output)
        return ExitCode.INTERRUPTED


def _target(parsed: argparse.Namespace) -> Target:
    if parsed.root is not None:
        if parsed.command == "publish":
            require_apart(parsed.root, os.path.join(parsed.source, parsed.path))
        return RootTarget(parsed.root, parsed.command)
    return AgentTarget(
        parsed.socket,
        parsed.token_file,
        namespace=getattr(parsed, "namespace", ""),
        storage_class=getattr(parsed, "storage_class", "disk"),
    )


def _require_standard_streams() -> None:
    """Fill what the shell closed (`2>&-`): a file of the store must not get a stream's number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    # Open for as long as the process lives.
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
