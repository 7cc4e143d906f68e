"""The command line: ``python -m devcluster COMMAND``.

Progress goes to standard error, results to standard output. Exit status: 0 done; 1 an error, said
in one line; 2 wrong usage; 3 ``status`` of a cluster that is not fully running; ``node exec`` ends
with the status of the program it ran.
"""

import argparse
import json
import os
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from devcluster import (
    binaries,
    cluster,
    collect,
    doctor,
    existing,
    machine,
    nodes,
    packages,
    project_images,
    status,
)
from devcluster.cluster import Cluster
from devcluster.errors import BadSetting, DevclusterError, NotOurCluster
from devcluster.progress import say
from devcluster.settings import Settings

REPOSITORY = Path(__file__).resolve().parents[4]
_EXTRA_COMPONENTS = frozenset(
    {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"}
)

Command = Callable[[Settings, argparse.Namespace], int]


def main(argv: Sequence[str]) -> int:
    arguments = parser().parse_args(argv)
    # Where Debian keeps iptables and runc; a user's PATH may not reach there.
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    command: Command = arguments.command
    try:
        return command(Settings.from_environment(os.environ), arguments)
    except DevclusterError as error:
        say(f"error: {error}")
        return 1


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="devcluster", description="a real Kubernetes on this host")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Command, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(command=command)
        return added

    add("doctor", _doctor, "say what this machine lacks, and the way out")
    add("packages", _packages, "install missing Debian packages (as root)")
    add("build", _build, "find or build every program a cluster runs")
    images = add("images", _images, "build images/*/Dockerfile and load them into every node")
    images.add_argument("names", nargs="*", metavar="NAME", help="only these folders of images/")
    images.add_argument("--base", help="base image instead of our own, e.g. python:3.12-slim")
    images.add_argument("--no-load", action="store_true", help="build only")
    up = add("up", _up, "start a cluster; what runs already is kept")
    up.add_argument("--nodes", type=int, default=2, metavar="N", help="at least N (default 2)")
    up.add_argument(
        "--flags",
        type=Path,
        metavar="FILE",
        help='JSON of flags to add, {"kube-controller-manager": ["--v=4"], ...}',
    )
    add("restart-api", _restart_api, "kill the API server and start it again")
    add("down", _down, "remove the cluster, also what a crash left of it")
    add("status", _status, "print as JSON what runs")
    add("kubeconfig", _kubeconfig, "print the path of the kubeconfig")
    add("env", _env, "print exports of PATH and KUBECONFIG for a shell")
    load = add("load", _load, "import image archives into every node")
    load.add_argument("archives", nargs="+", type=Path, metavar="ARCHIVE")
    gather = add("collect", _collect, "copy logs, events and objects into a folder")
    gather.add_argument("folder", type=Path, metavar="LOGDIR")
    _add_node_commands(commands.add_parser("node", help="add, remove, stop, start or enter a node"))
    return top


def _add_node_commands(node: argparse.ArgumentParser) -> None:
    commands = node.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Command, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(command=command)
        return added

    add("add", _node_add, "start one more node and print its name")
    remove = add("remove", _node_remove, "end a node as a power cut would")
    remove.add_argument("name", metavar="NAME")
    remove.add_argument("--keep-object", action="store_true", help="leave the Node object")
    add("stop", _node_stop, "kill the kubelet").add_argument("name", metavar="NAME")
    add("start", _node_start, "start a stopped kubelet").add_argument("name", metavar="NAME")
    enter = add("exec", _node_exec, "run a program in the node's mount namespace")
    enter.add_argument("name", metavar="NAME")
    enter.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- PROGRAM ...")


def _restart_api(settings: Settings, _: argparse.Namespace) -> int:
    cluster.restart_api(_own(settings))
    return 0


def _own(settings: Settings) -> Cluster:
    """The cluster to act on. Raises NotOurCluster where the user pointed at another one."""
    if settings.existing_kubeconfig is not None:
        raise NotOurCluster(
            "WEIGHTLEASE_KUBECONFIG names an existing cluster, whose nodes and images are not "
            "this tool's to change: unset it, or use that cluster's own tools"
        )
    return Cluster.of(settings)


def _doctor(settings: Settings, _: argparse.Namespace) -> int:
    found = doctor.findings(machine.observe(settings))
    for finding in found:
        print(f"missing for {finding.need.value}: {finding.missing}\n    {finding.way_out}")
    if not found:
        print("nothing is missing")
    return 1 if found else 0


def _packages(settings: Settings, _: argparse.Namespace) -> int:
    packages.install_missing(machine.observe(settings))
    return 0


def _build(settings: Settings, _: argparse.Namespace) -> int:
    print(binaries.ensure(settings.cache))
    return 0


def _images(settings: Settings, arguments: argparse.Namespace) -> int:
    if not arguments.no_load:
        _own(settings).require_record()
    built = project_images.build(settings, REPOSITORY, arguments.names, arguments.base)
    if not arguments.no_load:
        cluster.load(_own(settings), [image.archive for image in built], again=False)
    shown = {image.name: [image.reference, str(image.archive)] for image in built}
    print(json.dumps(shown, indent=1))
    return 0


def _up(settings: Settings, arguments: argparse.Namespace) -> int:
    if settings.existing_kubeconfig is not None:
        existing.check(settings)
        return 0
    cluster.up(_own(settings), arguments.nodes, _read_flags(arguments.flags))
    say(
        "the cluster is up; for its kubectl and helm: "
        'eval "$(PYTHONPATH=hack/devcluster/src python3 -m devcluster env)"; '
        "to remove it: make clean-cluster"
    )
    return 0


def _read_flags(path: Path | None) -> dict[str, list[str]]:
    if path is None:
        return {}
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadSetting(f"--flags {path}: {error}") from error
    if not isinstance(document, dict) or not document.keys() <= _EXTRA_COMPONENTS:
        known = ", ".join(sorted(_EXTRA_COMPONENTS))
        raise BadSetting(f"--flags {path}: give an object with keys out of {known}")
    for name, flags in document.items():
        if not isinstance(flags, list) or not all(isinstance(flag, str) for flag in flags):
            raise BadSetting(f"--flags {path}: {name} must be a list of strings")
    return document


def _down(settings: Settings, _: argparse.Namespace) -> int:
    if settings.existing_kubeconfig is not None:
        say("WEIGHTLEASE_KUBECONFIG names an existing cluster: it stays as it is")
        return 0
    cluster.down(_own(settings))
    return 0


def _status(settings: Settings, _: argparse.Namespace) -> int:
    if settings.existing_kubeconfig is not None:
        existing.check(settings)
        return 0
    shown = status.status(_own(settings))
    print(json.dumps(shown, indent=1))
    return 0 if shown["running"] else 3


def _kubeconfig(settings: Settings, _: argparse.Namespace) -> int:
    print(_kubeconfig_path(settings))
    return 0


def _env(settings: Settings, _: argparse.Namespace) -> int:
    print(f'export PATH={shlex.quote(str(binaries.bin_folder(settings.cache)))}:"$PATH"')
    print(f"export KUBECONFIG={shlex.quote(str(_kubeconfig_path(settings)))}")
    return 0


def _kubeconfig_path(settings: Settings) -> Path:
    if settings.existing_kubeconfig is not None:
        return settings.existing_kubeconfig
    own = Cluster.of(settings)
    own.require_record()
    return own.layout.kubeconfig


def _load(settings: Settings, arguments: argparse.Namespace) -> int:
    for archive in arguments.archives:
        if not archive.is_file():
            raise BadSetting(f"{archive} is no file")
    cluster.load(_own(settings), arguments.archives, again=True)
    return 0


def _collect(settings: Settings, arguments: argparse.Namespace) -> int:
    collect.collect(settings, arguments.folder)
    return 0


def _node_add(settings: Settings, _: argparse.Namespace) -> int:
    print(cluster.add_node(_own(settings)))
    return 0


def _node_remove(settings: Settings, arguments: argparse.Namespace) -> int:
    cluster.remove_node(_own(settings), arguments.name, keep_object=arguments.keep_object)
    return 0


def _node_stop(settings: Settings, arguments: argparse.Namespace) -> int:
    cluster.stop_node(_own(settings), arguments.name)
    return 0


def _node_start(settings: Settings, arguments: argparse.Namespace) -> int:
    cluster.start_node(_own(settings), arguments.name)
    return 0


def _node_exec(settings: Settings, arguments: argparse.Namespace) -> int:
    argv = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
    if not argv:
        raise BadSetting("node exec: name a program after --")
    own = _own(settings)
    node = own.node(own.require_record(), arguments.name)
    return subprocess.run(nodes.inside(own.layout, node, argv), check=False).returncode
