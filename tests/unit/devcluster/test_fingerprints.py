import dataclasses
import datetime as dt
import os
from pathlib import Path

import pytest

from devcluster import base_image, fingerprints
from devcluster.components import COMPONENTS, Component


def test_values_that_only_join_alike_have_different_keys() -> None:
    assert fingerprints.of_values({"a": "bc"}) != fingerprints.of_values({"ab": "c"})
    assert fingerprints.of_values({"a": "", "b": ""}) != fingerprints.of_values({"a": "b"})


def test_the_order_of_values_does_not_matter() -> None:
    assert fingerprints.of_values({"a": "1", "b": "2"}) == fingerprints.of_values(
        {"b": "2", "a": "1"}
    )


@pytest.mark.parametrize(
    "change", [{"ldflags": "-s"}, {"tags": "netgo"}, {"packages": ("./cmd",)}, {"static_cgo": True}]
)
def test_another_way_to_build_is_another_key(change: dict[str, object]) -> None:
    component = Component(name="pause", version="1", commands=("pause",))
    changed = dataclasses.replace(component, **change)  # type: ignore[arg-type]
    assert fingerprints.of_component(component, "x") != fingerprints.of_component(changed, "x")


def test_every_component_pins_its_modules_and_has_a_key_of_its_own() -> None:
    keys = [fingerprints.of_component(component, "x") for component in COMPONENTS]
    assert len(set(keys)) == len(COMPONENTS)
    for component in COMPONENTS:
        pinned = (component.module / "go.mod").read_text()
        assert f"module devcluster/{component.name}\n" in pinned
        assert component.name == "pause" or f"v{component.version}" in pinned


def test_a_files_key_changes_with_content_name_mode_and_link_target(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    os.symlink("a", tmp_path / "link")
    seen = {fingerprints.of_files(tmp_path, ["a", "link"])}
    (tmp_path / "a").write_text("two")
    seen.add(fingerprints.of_files(tmp_path, ["a", "link"]))
    (tmp_path / "a").chmod(0o755)
    seen.add(fingerprints.of_files(tmp_path, ["a", "link"]))
    (tmp_path / "link").unlink()
    os.symlink("b", tmp_path / "link")
    seen.add(fingerprints.of_files(tmp_path, ["a", "link"]))
    seen.add(fingerprints.of_files(tmp_path, ["a"]))
    assert len(seen) == 5


def test_a_deleted_file_that_is_still_listed_is_no_error(tmp_path: Path) -> None:
    assert fingerprints.of_files(tmp_path, ["gone"]) == fingerprints.of_files(tmp_path, [])


def test_the_base_image_is_renewed_monthly_and_per_mirror() -> None:
    first = base_image.fingerprint(dt.date(2026, 11, 1), None)
    assert first == base_image.fingerprint(dt.date(2026, 11, 30), None)
    assert first != base_image.fingerprint(dt.date(2026, 12, 1), None)
    assert first != base_image.fingerprint(dt.date(2026, 11, 1), "http://mirror.test/debian")
