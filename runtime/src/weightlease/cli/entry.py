"""From the command line to an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import closing

from weightlease.cli import commands
from weightlease.cli.arguments import parse
from weightlease.cli.exit_codes import ExitCode, exit_code
from weightlease.cli.output import print_error, print_problem
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
        return RootTarget(parsed.root, parsed.command)
    return AgentTarget(
        parsed.socket,
        parsed.token_file,
        namespace=getattr(parsed, "namespace", ""),
        storage_class=getattr(parsed, "storage_class", "disk"),
    )
