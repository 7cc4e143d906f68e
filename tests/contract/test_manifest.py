"""manifest.json and READY.json: what they say is exact, or it is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from weightlease import manifest as m
from weightlease.errors import ManifestError
from weightlease.identity import (
    Adaptation,
    ComponentIdentity,
    Layout,
    ProducerIdentity,
    Representation,
    SourceIdentity,
    WeightArtifactIdentity,
)

DIGEST = "0" * 64


def a_manifest() -> m.Manifest:
    identity = WeightArtifactIdentity(
        1,
        SourceIdentity("m", "r", "f"),
        ComponentIdentity("model", "full"),
        Representation("canonical", "source"),
        Layout("source-files"),
        Adaptation(),
        ProducerIdentity("p", "1", "p-1", "ms", "rs"),
    )
    tensors = (
        m.TensorEntry(
            "w", m.TensorKind.PARAMETER, "weight", "a.safetensors", "w", (2, 3), "torch.float32",
            (3, 1), 24, DIGEST,
        ),
    )  # fmt: skip
    return m.Manifest(
        1, identity.key, identity, "ms", "rs", tensors, (m.FileEntry("a.safetensors", 99, DIGEST),),
        m.content_sha256(tensors),
        {"assets": [{"path": "sub/config.json", "size": 2, "sha256": DIGEST}]},
    )  # fmt: skip


def changed(path: list[str | int], value: Any) -> bytes:
    document = json.loads(a_manifest().canonical_bytes)
    target = document
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return json.dumps(document).encode()


def test_a_manifest_survives_the_round_trip() -> None:
    manifest = a_manifest()
    assert m.parse_manifest(manifest.canonical_bytes) == manifest
    assert manifest.assets == (m.AssetEntry("sub/config.json", 2, DIGEST),)
    assert manifest.payload_bytes == 99


def test_the_manifest_digest_does_not_depend_on_white_space() -> None:
    data = a_manifest().canonical_bytes
    assert m.manifest_digest(json.dumps(json.loads(data), indent=4).encode()) == m.manifest_digest(
        data
    )


def test_the_content_digest_keeps_its_value() -> None:
    assert (
        m.content_sha256(a_manifest().tensors)
        == "5d0f14cacf4241295bfe30f7dd37ebb4287355cb321aa594a427966797bf61af"
    )


def test_the_content_digest_does_not_depend_on_how_tensors_are_split_over_files() -> None:
    tensor = a_manifest().tensors[0]
    moved = msgspec.structs.replace(tensor, file_name="b.safetensors", storage_key="other")
    renamed = msgspec.structs.replace(tensor, name="v")
    assert m.content_sha256((tensor,)) == m.content_sha256((moved,))
    assert m.content_sha256((tensor,)) != m.content_sha256((renamed,))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["schema_version"], 0),
        (["schema_version"], True),
        (["artifact_key"], "1" * 64),
        (["identity", "source", "revision"], "other"),
        (["producer_schema"], ""),
        (["tensors"], []),
        (["files"], []),
        (["surprise"], 1),
        (["files", 0, "file_name"], "../a.safetensors"),
        (["files", 0, "file_name"], "/a.safetensors"),
        (["files", 0, "file_name"], ".."),
        (["files", 0, "file_name"], "a/b.safetensors"),
        (["files", 0, "file_name"], "a\0.safetensors"),
        (["files", 0, "file_name"], "é" * 128),
        (["files", 0, "size"], -1),
        (["files", 0, "sha256"], "A" * 64),
        (["tensors", 0, "file_name"], "b.safetensors"),
        (["tensors", 0, "kind"], "gradient"),
        (["tensors", 0, "shape"], [2, -3]),
        (["tensors", 0, "shape"], [2.0, 3]),
        (["tensors", 0, "stride"], [1]),
        (["tensors", 0, "nbytes"], -1),
        (["tensors", 0, "sha256"], "0" * 63),
        (["artifact_content_sha256"], "x"),
    ],
)
def test_an_inexact_manifest_is_refused(path: list[str | int], value: Any) -> None:
    with pytest.raises(ManifestError):
        m.parse_manifest(changed(path, value))


def test_tensors_are_sorted_unique_and_share_no_storage() -> None:
    manifest = a_manifest()
    first = manifest.tensors[0]
    again = msgspec.structs.replace(first, name="v")
    for tensors in ((first, first), (first, again), (again, first)):
        with pytest.raises(ManifestError):
            m.validate_manifest(msgspec.structs.replace(manifest, tensors=tensors))


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "../x", "a/../b", "./a", "a//b", "a/", "a\\b", "a\0b", "x" * 256, ".."],
)
def test_an_asset_path_that_could_leave_its_tree_is_refused(path: str) -> None:
    with pytest.raises(ManifestError):
        m.require_asset_path(path)


@pytest.mark.parametrize("path", ["é" * 128, "\ud800", "\udcff/x", "d/" * 512 + "x"])
def test_an_asset_path_that_no_file_system_holds_is_refused(path: str) -> None:
    with pytest.raises(ManifestError):
        m.require_asset_path(path)


@pytest.mark.parametrize("path", ["é" * 127, "x" * 255, "d/" * 511 + "xx", "a\nb", "a b"])
def test_an_asset_path_may_be_as_long_and_odd_as_a_file_system_holds(path: str) -> None:
    m.require_asset_path(path)


@pytest.mark.parametrize("paths", [("a", "a"), ("a", "a/b"), ("a", "b", "a/c/d"), ("a/b", "a/b/c")])
def test_files_that_cannot_lie_in_one_folder_are_refused(paths: tuple[str, ...]) -> None:
    with pytest.raises(ManifestError):
        m.require_one_tree(paths)
    m.require_one_tree(("a/b", "a/c", "ab", "a.b"))


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"{" * 50_000, b'{"schema_version":1}'])
def test_bytes_that_are_no_metadata_are_refused(data: bytes) -> None:
    with pytest.raises(ManifestError):
        m.parse_manifest(data)
    with pytest.raises(ManifestError):
        m.parse_ready(data)


def test_strides_are_row_major_and_survive_empty_dimensions() -> None:
    assert m.contiguous_stride((2, 3, 4)) == (12, 4, 1)
    assert m.contiguous_stride((0, 4)) == (4, 1)
    assert m.contiguous_stride(()) == ()
