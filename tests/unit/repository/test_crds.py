"""The chart ships the generated custom resource definitions byte for byte."""

from __future__ import annotations

from pathlib import Path


def contents(paths: list[Path]) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in paths}


def test_the_charts_copy_equals_the_generated_definitions(root: Path) -> None:
    generated = contents(sorted((root / "crds").glob("*.yaml")))
    shipped = contents(sorted((root / "charts").glob("*/**/crds/*.yaml")))
    assert shipped == generated
