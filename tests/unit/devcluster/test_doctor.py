import dataclasses
from pathlib import Path

import pytest

from devcluster import doctor
from devcluster.components import COMPONENTS
from devcluster.doctor import Need
from devcluster.machine import TOOLS, Machine

GIB = 1024**3
WHOLE = Machine(
    system="Linux",
    is_root=True,
    has_apt=True,
    mount_namespaces=True,
    overlay_filesystem=True,
    tools=frozenset(TOOLS),
    cni_plugins=Path("/usr/lib/cni"),
    openssl=(3, 0, 20),
    go=(1, 26),
    gcc=True,
    ready=frozenset(),
    free_cache_bytes=100 * GIB,
    free_state_bytes=100 * GIB,
    available_memory_bytes=16 * GIB,
)


def test_a_whole_machine_lacks_nothing() -> None:
    assert doctor.findings(WHOLE) == []
    assert doctor.missing_packages(WHOLE) == []


@pytest.mark.parametrize(
    ("change", "need", "missing", "way_out"),
    [
        ({"system": "Darwin"}, Need.CLUSTER, "Linux", "Linux machine"),
        ({"is_root": False}, Need.CLUSTER, "root", "WEIGHTLEASE_KUBECONFIG"),
        ({"mount_namespaces": False}, Need.CLUSTER, "mount namespaces", "privileged"),
        ({"overlay_filesystem": False}, Need.CLUSTER, "overlayfs", "modprobe overlay"),
        ({"cni_plugins": None}, Need.CLUSTER, "CNI", "containernetworking-plugins"),
        ({"openssl": (1, 1, 1)}, Need.CLUSTER, "openssl 3", "newer"),
        ({"go": None}, Need.BUILD, "Go 1.26 (none found)", "install Go"),
        ({"go": (1, 25)}, Need.BUILD, "found 1.25", "install Go"),
        ({"gcc": False}, Need.BUILD, "gcc", "gcc"),
        ({"free_cache_bytes": GIB}, Need.CLUSTER, "WEIGHTLEASE_CACHE", "elsewhere"),
        ({"free_state_bytes": GIB}, Need.CLUSTER, "WEIGHTLEASE_STATE", "elsewhere"),
        ({"available_memory_bytes": GIB}, Need.CLUSTER, "4 GiB of memory", "larger"),
    ],
)
def test_each_lack_is_named_with_what_it_hinders_and_its_way_out(
    change: dict[str, object], need: Need, missing: str, way_out: str
) -> None:
    found = doctor.findings(dataclasses.replace(WHOLE, **change))  # type: ignore[arg-type]
    assert [finding.need for finding in found] == [need]
    assert missing in found[0].missing
    assert way_out in found[0].way_out


@pytest.mark.parametrize("tool", TOOLS)
def test_each_missing_program_is_named_with_its_package(tool: str) -> None:
    machine = dataclasses.replace(WHOLE, tools=WHOLE.tools - {tool})
    (found,) = doctor.findings(machine)
    (package,) = doctor.missing_packages(machine)
    assert tool in found.missing
    assert package in found.way_out


def test_nothing_to_build_needs_no_compiler() -> None:
    ready = frozenset(component.name for component in COMPONENTS)
    assert doctor.findings(dataclasses.replace(WHOLE, ready=ready, go=None, gcc=False)) == []


def test_without_root_the_way_out_is_a_command_for_root() -> None:
    machine = dataclasses.replace(WHOLE, is_root=False, tools=WHOLE.tools - {"buildah"})
    found = [finding for finding in doctor.findings(machine) if "buildah" in finding.missing]
    assert [finding.way_out for finding in found] == ["as root: apt-get install buildah"]
