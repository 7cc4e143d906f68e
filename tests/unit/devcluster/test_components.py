import pytest

from devcluster.components import COMPONENTS, Component, Version, is_suitable, parse_version

PAIR = Component(name="pair", version="2.0.0", commands=("a", "b"), minimum=(1, 33, 0))


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("Kubernetes v1.36.3", (1, 36, 3)),
        ("etcd Version: 3.6.16\nGit SHA: abc", (3, 6, 16)),
        ("containerd github.com/containerd/containerd/v2 v2.2.9 abc", (2, 2, 9)),
        ("runc version 1.1.5+ds1\nspec: 1.0.2-dev", (1, 1, 5)),
        ("v4.3.1+g0123abc", (4, 3, 1)),
        ("no version here", None),
        ("address 1.2.3.4", None),
    ],
)
def test_a_version_is_found_in_what_programs_print(output: str, expected: Version | None) -> None:
    found = parse_version(output)
    assert found == expected


@pytest.mark.parametrize(
    ("versions", "suitable"),
    [
        ({"a": (1, 36, 3), "b": (1, 36, 1)}, True),
        ({"a": (1, 33, 0), "b": (1, 33, 0)}, True),
        ({"a": (1, 36, 3), "b": (1, 35, 0)}, False),
        ({"a": (1, 32, 9), "b": (1, 32, 9)}, False),
        ({"a": (1, 36, 3), "b": None}, False),
        ({"a": (1, 36, 3)}, False),
    ],
)
def test_found_programs_stand_in_only_as_a_whole_set_of_one_minor_version(
    versions: dict[str, Version | None], suitable: bool
) -> None:
    assert is_suitable(PAIR, versions) is suitable


def test_no_two_components_make_the_same_command() -> None:
    commands = [command for component in COMPONENTS for command in component.commands]
    assert len(commands) == len(set(commands))
