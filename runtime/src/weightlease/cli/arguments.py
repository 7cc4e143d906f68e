"""What the command line accepts."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from weightlease.cli import exit_codes
from weightlease.names import DEFAULT_COMPONENT, ENV_SOCKET, ENV_TOKEN_FILE, StorageClass

_ARTIFACT = (
    "a key of 64 hex digits, or with an agent [namespace/]artifact[:component][@coordinates]"
)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parsed arguments; `run` is what follows `--` of a lease. Ends the process on wrong usage."""
    own, run = list(arguments), []
    if own[:1] == ["lease"] and "--" in own:
        split = own.index("--")
        own, run = own[:split], own[split + 1 :]
        if not run:
            parser().error("a command must follow --")
    parsed = parser().parse_args(own)
    parsed.run = run
    return parsed


def parser() -> argparse.ArgumentParser:
    """The parser of every command."""
    top = argparse.ArgumentParser(
        prog="weightlease",
        description="Publish, inspect and lease model weights on this host.",
        epilog=exit_codes.TABLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _publish(commands)
    listing = _command(commands, "ls", "list what the store holds")
    listing.add_argument("--all", action="store_true", help="quarantine and staging too")
    inspect = _command(commands, "inspect", "show one artifact's identity, files and holders")
    inspect.add_argument("artifact", metavar="ARTIFACT", help=_ARTIFACT)
    inspect.add_argument("--tensors", action="store_true", help="list every tensor as well")
    verify = _command(commands, "verify", "read every byte of artifacts and compare its checksum")
    verify.add_argument("artifacts", nargs="+", metavar="ARTIFACT", help=_ARTIFACT)
    lease = _command(
        commands, "lease", "hold a lease and print it until interrupted, or while a command runs"
    )
    lease.usage = "weightlease lease [options] ARTIFACT [-- COMMAND [ARGUMENT ...]]"
    lease.epilog = "COMMAND finds the artifact's files in the folder that WEIGHTLEASE_DIR names."
    lease.add_argument("artifact", metavar="ARTIFACT", help=_ARTIFACT)
    cleanup = _command(commands, "cleanup", "remove an artifact that nobody leases or builds")
    cleanup.add_argument("key", metavar="KEY", help="64 hex digits")
    cleanup.add_argument("--namespace", default="", help="whose artifact, on a bare host's agent")
    return top


def _publish(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    publish = _command(commands, "publish", "publish a local checkpoint folder, file for file")
    publish.add_argument(
        "source", metavar="SOURCE_DIR", type=_path, help="a folder with safetensors files"
    )
    publish.add_argument(
        "--model-id", default="", help="whose weights these are; default: the folder's path"
    )
    publish.add_argument(
        "--revision", default="", help="which state of them; default: their fingerprint"
    )
    publish.add_argument("--component", default=DEFAULT_COMPONENT, help="default: %(default)s")
    publish.add_argument(
        "--path", default=".", help="the component's folder below SOURCE_DIR; default: %(default)s"
    )
    publish.add_argument("--include", action="append", default=[], metavar="PATTERN")
    publish.add_argument("--exclude", action="append", default=[], metavar="PATTERN")
    publish.add_argument(
        "--storage-class",
        choices=[str(one) for one in StorageClass],
        default=str(StorageClass.DISK),
        help="where an agent keeps it; a root has its own; default: %(default)s",
    )
    publish.add_argument("--namespace", default="", help="whose artifact, on a bare host's agent")


def _path(text: str) -> str:
    # An unset variable of a script must not mean the current folder.
    if not text:
        raise argparse.ArgumentTypeError("a path must not be empty")
    # `--root=~/weights` reaches us as it is
    return os.path.expanduser(text)


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=f"{text}.".capitalize())
    target = command.add_mutually_exclusive_group()
    target.add_argument("--root", metavar="PATH", type=_path, help="a store root on this host")
    target.add_argument(
        "--socket", metavar="PATH", help=f"an agent's socket; default: {ENV_SOCKET}, else the pod's"
    )
    command.add_argument(
        "--token-file", metavar="PATH", help=f"default: {ENV_TOKEN_FILE}, else the pod's"
    )
    command.add_argument(
        "--output", "-o", choices=["table", "json"], default="table", help="default: %(default)s"
    )
    return command
