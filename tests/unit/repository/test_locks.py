"""Locks pin by hash, fit what the packages declare, and name no address."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCKS = (
    "bootstrap",
    "build",
    "checkpoints",
    "csi-driver",
    "dev",
    "interop",
    "node-agent",
    "operator",
    "producer",
)
OURS = {"weightlease", "weightlease-operator", "weightlease-node-agent", "weightlease-csi-driver"}
# what an image without an accelerator must never carry
HEAVY = re.compile(r"^(torch|triton|numpy|nvidia-.*|cuda-.*)$")


def pins_of(text: str) -> dict[str, str]:
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", text, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def lock_text(root: Path, lock: str) -> str:
    return (root / "requirements" / f"{lock}.txt").read_text()


def declared(root: Path, distribution: str, *extras: str) -> list[Requirement]:
    project = tomllib.loads((root / distribution / "pyproject.toml").read_text())["project"]
    optional = project.get("optional-dependencies", {})
    wanted = [*project["dependencies"], *(name for extra in extras for name in optional[extra])]
    return [req for req in map(Requirement, wanted) if canonicalize_name(req.name) not in OURS]


def tools(root: Path) -> list[Requirement]:
    groups = tomllib.loads((root / "pyproject.toml").read_text())["dependency-groups"]
    texts = [entry for group in groups.values() for entry in group if isinstance(entry, str)]
    return [Requirement(text) for text in texts]


def test_every_lock_and_its_source_are_known(root: Path) -> None:
    folder = root / "requirements"
    assert sorted(path.stem for path in folder.glob("*.txt")) == sorted(LOCKS)
    assert sorted(path.stem for path in folder.glob("*.in")) == sorted(LOCKS)


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_pins_every_package_by_hash(root: Path, lock: str) -> None:
    entries = re.split(r"\n(?=\S)", lock_text(root, lock).replace("\\\n", " "))
    requirements = [entry for entry in entries if entry and not entry.startswith("#")]
    assert requirements
    assert [entry for entry in requirements if "==" not in entry] == []
    assert [entry for entry in requirements if "--hash=sha256:" not in entry] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_address_and_no_path(root: Path, lock: str) -> None:
    text = lock_text(root, lock)
    forbidden = re.compile(r"://|--(index|extra-index|find-links|trusted)|file:|(?<=\s)/\w")
    assert forbidden.findall(text) == []


def test_locks_agree_with_what_is_declared(root: Path) -> None:
    needs = {
        "dev": [
            *tools(root),
            *declared(root, "runtime", "api", "torch", "hub"),
            *declared(root, "operator"),
            *declared(root, "node_agent"),
            *declared(root, "csi_driver"),
        ],
        "operator": [*declared(root, "runtime", "api"), *declared(root, "operator")],
        "node-agent": [*declared(root, "runtime", "api"), *declared(root, "node_agent")],
        "csi-driver": [*declared(root, "runtime"), *declared(root, "csi_driver")],
        "producer": declared(root, "runtime", "hub"),
    }
    for lock, requirements in needs.items():
        pins = pins_of(lock_text(root, lock))
        stale = [
            str(requirement)
            for requirement in requirements
            if not requirement.specifier.contains(
                pins.get(canonicalize_name(requirement.name), "0"), prereleases=True
            )
        ]
        assert stale == [], f"run `make lock`: {lock}.txt lacks these"


@pytest.mark.parametrize("lock", ["build", "csi-driver", "node-agent", "operator", "producer"])
def test_images_carry_versions_that_were_tested(root: Path, lock: str) -> None:
    tested = pins_of(lock_text(root, "dev"))
    assert pins_of(lock_text(root, lock)).items() <= tested.items()


@pytest.mark.parametrize("lock", ["csi-driver", "node-agent", "operator", "producer"])
def test_images_carry_no_accelerator_packages(root: Path, lock: str) -> None:
    assert [name for name in pins_of(lock_text(root, lock)) if HEAVY.match(name)] == []


@pytest.mark.parametrize("lock", ["csi-driver", "producer"])
def test_an_image_that_asks_no_api_server_carries_no_client_of_one(root: Path, lock: str) -> None:
    assert {"kubernetes", "kopf"}.isdisjoint(pins_of(lock_text(root, lock)))
