"""The programs a cluster runs: versions, how each is built, and which found ones will do."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

Version = tuple[int, int, int]

BINARIES = Path(__file__).resolve().parents[2] / "binaries"
"""One Go module per component: its go.mod and go.sum pin every byte that is built."""

_VERSION = re.compile(r"(?<![\d.])v?(\d+)\.(\d+)\.(\d+)(?!\d|\.\d)")
_KUBERNETES = "1.36.3"
_KUBERNETES_VERSION_PACKAGE = "k8s.io/component-base/version"


@dataclass(frozen=True, slots=True)
class Component:
    """A Go module of ``binaries/`` and the programs it makes.

    ``minimum`` is the oldest version found on the machine that is used instead of building; None
    means always build. ``links`` are names by which the single built program is called.
    """

    name: str
    version: str
    commands: tuple[str, ...]
    packages: tuple[str, ...] = (".",)
    links: tuple[str, ...] = ()
    minimum: Version | None = None
    probe: tuple[str, ...] = ("--version",)
    ldflags: str = "-s -w"
    tags: str = ""
    static_cgo: bool = False

    @property
    def module(self) -> Path:
        return BINARIES / self.name

    def probe_of(self, command: str) -> tuple[str, ...]:
        """Arguments that make ``command`` print its version."""
        return ("version", "--client") if command == "kubectl" else self.probe

    def build_arguments(self, output: Path) -> list[str]:
        """``go build`` with everything that decides about the result."""
        ldflags = self.ldflags
        if self.static_cgo:
            ldflags += ' -linkmode external -extldflags "-static"'
        arguments = ["go", "build", "-trimpath", f"-ldflags={ldflags}"]
        if self.tags:
            arguments.append(f"-tags={self.tags}")
        # A folder with a trailing slash lets Go name the programs after their packages.
        target = f"{output}/" if self.packages != (".",) else str(output / self.name)
        return [*arguments, "-o", target, *self.packages]


_KUBERNETES_COMMANDS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kubectl",
)

COMPONENTS = (
    Component(
        name="kubernetes",
        version=_KUBERNETES,
        commands=_KUBERNETES_COMMANDS,
        links=_KUBERNETES_COMMANDS,
        minimum=(1, 33, 0),
        # Unset, the version is v0.0.0 and clients refuse to talk.
        ldflags=(
            f"-s -w -X {_KUBERNETES_VERSION_PACKAGE}.gitVersion=v{_KUBERNETES}"
            f" -X {_KUBERNETES_VERSION_PACKAGE}.gitMajor=1"
            f" -X {_KUBERNETES_VERSION_PACKAGE}.gitMinor=36"
        ),
    ),
    Component(
        name="helm",
        version="4.3.1",
        commands=("helm",),
        packages=("helm.sh/helm/v4/cmd/helm",),
        minimum=(4, 0, 0),
        probe=("version", "--short"),
        ldflags="-s -w -X helm.sh/helm/v4/internal/version.version=v4.3.1",
    ),
    Component(
        name="containerd",
        version="2.2.9",
        commands=("containerd", "containerd-shim-runc-v2", "ctr"),
        packages=tuple(
            f"github.com/containerd/containerd/v2/cmd/{name}"
            for name in ("containerd", "containerd-shim-runc-v2", "ctr")
        ),
        minimum=(2, 0, 0),
        ldflags="-s -w -X github.com/containerd/containerd/v2/version.Version=v2.2.9",
        tags="no_btrfs,no_devmapper,no_zfs",
    ),
    Component(name="etcd", version="3.6.16", commands=("etcd",), minimum=(3, 5, 0)),
    Component(
        name="runc",
        version="1.3.3",
        commands=("runc",),
        packages=("github.com/opencontainers/runc",),
        minimum=(1, 1, 0),
        ldflags="-s -w -X main.version=1.3.3",
        tags="netgo,osusergo",
        static_cgo=True,
    ),
    Component(name="pause", version="1", commands=("pause",)),
)
"""In the order in which they are built: the longest first."""


def parse_version(output: str) -> Version | None:
    """The first ``[v]X.Y.Z`` in what a program printed."""
    found = _VERSION.search(output)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def is_suitable(component: Component, versions: Mapping[str, Version | None]) -> bool:
    """Whether programs of these versions can stand in for building ``component``.

    All of its commands must be there, none older than ``minimum``, all of one minor version:
    a mixed set would test a combination that nobody runs.
    """
    if component.minimum is None:
        return False
    found = [versions.get(command) for command in component.commands]
    known = [version for version in found if version is not None]
    return (
        len(known) == len(found)
        and min(known) >= component.minimum
        and len({version[:2] for version in known}) == 1
    )
