"""What a lease gives: exact bytes, shared and read-only, under the names of their source."""

from __future__ import annotations

import copy
import json
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors import safe_open

from descriptors import open_descriptors
from small_artifact import SmallArtifact, Tensor, make_artifact
from weightlease.errors import ManifestError, SafetensorsFormatError, WeightLeaseError
from weightlease.lease import WeightLease
from weightlease.lease_manifest import LeasedManifest
from weightlease.manifest import FileEntry, Manifest
from weightlease.safetensors_format import DTYPES

WEIGHT = np.arange(48, dtype="<f4").reshape(6, 8)


@pytest.mark.parametrize("lazily", [False, True], ids=["decoded", "bytes"])
def test_tensors_have_the_published_values_shapes_and_types(
    artifact: SmallArtifact, lazily: bool
) -> None:
    with artifact.lease(lazily=lazily) as lease:
        tensors = lease.tensors()
        assert torch.equal(tensors["encoder.weight"], torch.from_numpy(WEIGHT.copy()))
        assert tensors["encoder.half"].dtype == torch.bfloat16
        assert tensors["encoder.half"].tolist() == [1.0] * 4
        assert tensors["scale"].shape == ()
        assert tensors["scale"].item() == 0.5
        assert tensors["empty"].shape == (0, 7)
        assert tensors["tiny"].dtype == torch.float8_e4m3fn
        assert tensors["unknown"].dtype == torch.uint8
        assert bytes(tensors["unknown"].tolist()) == b"abc"
        assert tensors["future"].numel() * tensors["future"].element_size() == 4


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_each_dtype_is_handed_out_as_its_own_and_keeps_its_bytes(
    tmp_path: Path, dtype: str
) -> None:
    bits, stored = DTYPES[dtype]
    body = bytes(range(1, bits + 1))
    with make_artifact(tmp_path, {"m.safetensors": {"w": (dtype, (8,), body)}}).lease() as lease:
        tensor = lease.tensor("w")
        known = getattr(torch, stored.removeprefix("torch."), None) if bits >= 8 else None
        assert tensor.dtype == (known or torch.uint8)
        assert tensor.shape == ((8,) if known else (bits,))
        assert lease.array("w").nbytes == bits
        assert lease.buffer("w").tobytes() == body
        assert bytes(tensor.view(torch.uint8).numpy()) == body


@pytest.mark.parametrize(
    ("dtype", "body", "value"),
    [
        ("F8_E4M3", b"\xb0", -0.5),
        ("F8_E5M2", b"\xb8", -0.5),
        ("F8_E8M0", b"\x7e", 0.5),
        ("BF16", b"\x00\xbf", -0.5),
    ],
)
def test_one_value_has_other_bits_in_each_narrow_float(
    tmp_path: Path, dtype: str, body: bytes, value: float
) -> None:
    with make_artifact(tmp_path, {"m.safetensors": {"w": (dtype, (1,), body)}}).lease() as lease:
        assert lease.tensor("w").float().item() == value


def test_arrays_are_read_only_and_types_that_numpy_lacks_come_as_raw_integers(
    artifact: SmallArtifact,
) -> None:
    with artifact.lease() as lease:
        arrays = lease.numpy()
        assert np.array_equal(arrays["encoder.weight"], WEIGHT)
        assert arrays["encoder.half"].dtype == np.dtype("<u2")
        assert arrays["tiny"].dtype == np.uint8
        assert arrays["tiny"].shape == (2, 2)
        assert arrays["scale"].shape == ()
        assert arrays["empty"].shape == (0, 7)
        with pytest.raises(ValueError, match="read-only"):
            arrays["encoder.weight"][0, 0] = 1.0
        with pytest.raises(ValueError, match="WRITEABLE"):
            arrays["encoder.weight"].flags.writeable = True


def test_a_buffer_is_the_tensors_bytes_read_only(artifact: SmallArtifact) -> None:
    with artifact.lease() as lease:
        data = lease.buffer("encoder.weight")
        assert data.readonly
        assert data.tobytes() == WEIGHT.tobytes()


def test_the_mapping_of_tensors_is_lazy_and_behaves_like_a_mapping(
    artifact: SmallArtifact,
) -> None:
    with artifact.lease(lazily=True) as lease:
        tensors = lease.tensors()
        assert list(tensors) == sorted(entry.name for entry in artifact.manifest.tensors)
        assert len(tensors) == 7
        assert "scale" in tensors
        assert "missing" not in tensors
        with pytest.raises(KeyError, match="missing"):
            tensors["missing"]
        assert lease.live_views() == ()


def test_a_thousand_tensors_are_each_found_by_their_own_name(tmp_path: Path) -> None:
    tensors: dict[str, Tensor] = {
        f"layer.{i}": ("I32", (1,), i.to_bytes(4, "little")) for i in range(1000)
    }
    with make_artifact(tmp_path, {"model.safetensors": tensors}).lease(lazily=True) as lease:
        assert [lease.tensor(f"layer.{i}").item() for i in range(1000)] == list(range(1000))
        assert lease.manifest.tensors[0].name == "layer.0"


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("names", [["w", 'x"w', "w\\", "\u00e9", "ww", '"w'], ["w", "\\w", "v"]])
def test_names_that_hold_one_another_are_told_apart_in_a_compact_header(
    tmp_path: Path, names: list[str], ascii_only: bool
) -> None:
    ordered = sorted(names, reverse=True)
    tensors: dict[str, Tensor] = {
        name: ("U8", (1,), bytes([number])) for number, name in enumerate(ordered)
    }
    made = make_artifact(tmp_path, {"model.safetensors": tensors})
    payload = tmp_path / "model.safetensors"
    data = payload.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=ascii_only).encode()
    payload.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    manifest = replaced(made, files=(file_of(made, payload.stat().st_size),))
    for asked in (ordered, ordered[::-1]):
        payloads, assets, lock = made.descriptors()
        with WeightLease(manifest, payloads, assets, lock, made.provenance()) as lease:
            found = {name: lease.buffer(name).tobytes() for name in asked}
        assert found == {name: bytes([number]) for number, name in enumerate(ordered)}


def test_misaligned_tensors_are_copied_once_and_counted(tmp_path: Path) -> None:
    body = WEIGHT.tobytes()
    made = make_artifact(
        tmp_path,
        {"model.safetensors": {"w": ("F32", (6, 8), body), "b": ("U8", (3,), b"abc")}},
        odd=True,
    )
    with made.lease() as lease:
        first, second = lease.tensor("w"), lease.tensor("w")
        assert torch.equal(first, torch.from_numpy(WEIGHT.copy()))
        assert first.data_ptr() % 4 == 0
        assert first.data_ptr() == second.data_ptr()
        assert np.array_equal(lease.array("w"), WEIGHT)
        assert lease.copied_bytes == len(body)
        assert lease.tensor("b").tolist() == list(b"abc")
        assert lease.copied_bytes == len(body), "bytes have no alignment to miss"
        assert lease.buffer("w").tobytes() == body


def test_aligned_tensors_share_memory_and_nothing_is_copied(artifact: SmallArtifact) -> None:
    with artifact.lease() as lease:
        first, second = lease.tensor("encoder.weight"), lease.tensor("encoder.weight")
        assert first.data_ptr() == second.data_ptr()
        assert lease.copied_bytes == 0


def test_torchs_read_only_warning_is_silenced_also_when_it_warns_always(
    artifact: SmallArtifact,
) -> None:
    torch.set_warn_always(True)
    try:
        with artifact.lease() as lease:
            assert lease.tensor("scale").item() == 0.5
            assert lease.tensor("scale").item() == 0.5
    finally:
        torch.set_warn_always(False)


def test_a_writable_copy_first_does_not_let_torchs_read_only_warning_through_later() -> None:
    # torch warns once per process: only a process of its own sees the first time
    script = """
import warnings
warnings.simplefilter("error")
from weightlease.lease_tensors import torch_view
assert torch_view(memoryview(bytearray(4)), "F32", (1,)).tolist() == [0.0]
assert torch_view(memoryview(bytes(4)), "F32", (1,)).tolist() == [0.0]
assert torch_view(memoryview(bytes(4)), "F32", (1,)).tolist() == [0.0]
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_identity_provenance_and_size_are_known_without_reading_tensors(
    artifact: SmallArtifact,
) -> None:
    with artifact.lease(lazily=True) as lease:
        assert lease.identity == artifact.manifest.identity
        assert lease.key == artifact.manifest.artifact_key
        assert lease.provenance.resolution_source == "local_store"
        assert lease.shared_bytes == artifact.manifest.payload_bytes
        assert lease.manifest == artifact.manifest


def test_paths_of_files_work_in_a_spawned_child(artifact: SmallArtifact) -> None:
    program = (
        "import sys; from safetensors import safe_open\n"
        "with safe_open(sys.argv[1], 'np') as f: print(f.get_tensor('encoder.weight').sum())\n"
        "print(open(sys.argv[2]).read())"
    )
    with artifact.lease() as lease:
        files = lease.files()
        assert sorted(files) == [
            "1_Pooling/config.json",
            "config.json",
            "model-00001.safetensors",
            "model-00002.safetensors",
        ]
        done = subprocess.run(
            [
                *(sys.executable, "-c", program),
                *(files["model-00001.safetensors"], files["1_Pooling/config.json"]),
            ],
            check=True,
            capture_output=True,
            text=True,
        )
    assert done.stdout.split("\n")[:2] == ["1128.0", '{"pooling": true}']


def test_a_directory_shows_the_original_names_and_goes_with_its_block(
    artifact: SmallArtifact,
) -> None:
    with artifact.lease() as lease, lease.directory() as root:
        assert os.stat(root).st_mode & 0o777 == 0o700
        assert (Path(root) / "1_Pooling" / "config.json").read_bytes() == b'{"pooling": true}'
        with safe_open(f"{root}/model-00001.safetensors", "np") as file:
            assert np.array_equal(file.get_tensor("encoder.weight"), WEIGHT)
    assert not os.path.exists(root)
    assert (artifact.folder / "model-00001.safetensors").exists(), "links go, files stay"


@pytest.mark.parametrize("path", ["../evil", "/etc/passwd", "a/../../b", "", "a//b", "a\0b"])
def test_an_asset_path_that_could_escape_is_refused_with_every_descriptor_closed(
    artifact: SmallArtifact, path: str, descriptors: list[str]
) -> None:
    format_metadata = {"assets": [{"path": path, "size": 2, "sha256": "0" * 64}]}
    hostile = LeasedManifest(replaced(artifact, format_metadata=format_metadata))
    payloads, assets, lock = artifact.descriptors()
    os.close(assets.pop())
    with pytest.raises(ManifestError):
        WeightLease(hostile, payloads, assets, lock, artifact.provenance())
    assert open_descriptors() == descriptors


@pytest.mark.parametrize("path", ["model-00001.safetensors", "model-00001.safetensors/config.json"])
def test_an_asset_that_collides_with_a_payload_file_is_refused(
    artifact: SmallArtifact, path: str
) -> None:
    size = len(b'{"pooling": true}')
    format_metadata = {"assets": [{"path": path, "size": size, "sha256": "0" * 64}]}
    hostile = LeasedManifest(replaced(artifact, format_metadata=format_metadata))
    payloads, assets, lock = artifact.descriptors()
    os.close(assets.pop())
    with pytest.raises(ManifestError):
        WeightLease(hostile, payloads, assets, lock, artifact.provenance())
    assert not artifact.is_leased()


def test_too_few_descriptors_or_another_size_are_refused(
    artifact: SmallArtifact, descriptors: list[str]
) -> None:
    payloads, assets, lock = artifact.descriptors()
    os.close(payloads.pop())
    with pytest.raises(ManifestError, match="1 descriptors for 2 payload files"):
        WeightLease(artifact.manifest, payloads, assets, lock, artifact.provenance())
    payloads, assets, lock = artifact.descriptors()
    with pytest.raises(SafetensorsFormatError, match="bytes where the manifest says"):
        WeightLease(artifact.manifest, payloads[::-1], assets, lock, artifact.provenance())
    assert open_descriptors() == descriptors


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ({"data_offsets": [0, 10**9]}, "offsets_invalid"),
        ({"data_offsets": [-4, 188]}, "offsets_invalid"),
        ({"data_offsets": [192, 0]}, "offsets_invalid"),
        ({"data_offsets": [0, 188]}, "size_differs"),
        ({"shape": [6, 9]}, "shape_differs"),
        ({"shape": [-6, -8]}, "offsets_invalid"),
        ({"dtype": "F64"}, "shape_differs"),
        ({"dtype": 7}, "entry_malformed"),
    ],
)
def test_a_header_that_lies_is_a_typed_error_and_never_a_view(
    tmp_path: Path, lie: dict[str, object], reason: str
) -> None:
    made = make_artifact(tmp_path, {"model.safetensors": {"w": ("F32", (6, 8), WEIGHT.tobytes())}})
    payload = tmp_path / "model.safetensors"
    before = {"dtype": "F32", "shape": [6, 8], "data_offsets": [0, 192]}
    rewrite_header(payload, before | lie)
    manifest = replaced(made, files=(file_of(made, payload.stat().st_size),))
    payloads, assets, lock = made.descriptors()
    with WeightLease(manifest, payloads, assets, lock, made.provenance()) as lease:
        with pytest.raises(SafetensorsFormatError) as error:
            lease.tensor("w")
        assert error.value.reason == reason
        assert lease.live_views() == ()


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 16, b"\x02\0\0\0\0\0\0\0[]", b"\x05\0\0\0\0\0\0\0{}"]
)
def test_a_file_that_is_not_safetensors_is_a_typed_error(tmp_path: Path, data: bytes) -> None:
    made = make_artifact(tmp_path, {"model.safetensors": {"w": ("U8", (3,), b"abc")}})
    (tmp_path / "model.safetensors").write_bytes(data)
    manifest = replaced(made, files=(file_of(made, len(data)),))
    payloads, assets, lock = made.descriptors()
    with (
        WeightLease(manifest, payloads, assets, lock, made.provenance()) as lease,
        pytest.raises(SafetensorsFormatError),
    ):
        lease.tensor("w")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"tensors": 1}', b"\xff\xfe"])
def test_bytes_that_are_no_manifest_are_a_typed_error(data: bytes) -> None:
    with pytest.raises(ManifestError):
        LeasedManifest.parse(data)


def test_a_malformed_tensor_list_is_a_typed_error_when_it_is_read(artifact: SmallArtifact) -> None:
    data = artifact.manifest.canonical_bytes
    start = data.index(b'"tensors":') + len(b'"tensors":')
    broken = LeasedManifest.parse(data[:start] + b'[{"name":7}]}')
    with pytest.raises(ManifestError):
        broken.find("scale")
    with pytest.raises(ManifestError):
        broken.full()


ODD_NAMES = ["w", 'x"w', "w\\", "\u00e9", "a}b", '","name":"w"', "ww"]


@pytest.mark.parametrize("canonical", [True, False], ids=["canonical", "spaced"])
def test_an_entry_is_found_by_its_whole_name_however_odd(tmp_path: Path, canonical: bool) -> None:
    tensors: dict[str, Tensor] = {
        name: ("U8", (1,), bytes([number])) for number, name in enumerate(ODD_NAMES)
    }
    manifest = make_artifact(tmp_path, {"model.safetensors": tensors}).manifest
    data = manifest.canonical_bytes
    if not canonical:
        data = json.dumps(json.loads(data)).encode()
    for name in ODD_NAMES:
        leased = LeasedManifest.parse(data)
        assert leased.find(name) == next(e for e in manifest.tensors if e.name == name)
        assert leased.full() == manifest
        with pytest.raises(KeyError):
            LeasedManifest.parse(data).find(name + "?")


def test_another_list_of_tensors_in_the_metadata_is_not_taken_for_the_manifests(
    artifact: SmallArtifact,
) -> None:
    true = artifact.manifest.tensors[0]
    lies = [{"name": name, "nbytes": 1} for name in ("planted", true.name)]
    entry = msgspec.to_builtins(true)
    metadata = {"tensors": [dict(sorted((entry | lie).items())) for lie in lies]}
    data = replaced(artifact, format_metadata=metadata).canonical_bytes
    leased = LeasedManifest.parse(data)
    assert leased.artifact_key == artifact.manifest.artifact_key
    assert leased.files == artifact.manifest.files
    assert leased.find(true.name) == true
    assert leased.full().format_metadata == json.loads(json.dumps(metadata))
    with pytest.raises(KeyError):
        LeasedManifest.parse(data).find("planted")


def test_metadata_behind_the_tensors_is_not_lost(tmp_path: Path) -> None:
    tensors: dict[str, Tensor] = {"w": ("U8", (1,), b"x")}
    made = make_artifact(tmp_path, {"model.safetensors": tensors}, {"config.json": b"{}"})
    fields = json.loads(made.manifest.canonical_bytes)
    fields["format_metadata"] = fields.pop("format_metadata")
    leased = LeasedManifest.parse(json.dumps(fields, separators=(",", ":")).encode())
    assert leased.assets == made.manifest.assets


def test_a_lease_cannot_be_pickled_or_copied(artifact: SmallArtifact) -> None:
    with artifact.lease() as lease:
        with pytest.raises(TypeError, match=r"lease\.files"):
            pickle.dumps(lease)
        with pytest.raises(TypeError, match="cannot be pickled"):
            copy.copy(lease)


def test_a_closed_lease_says_so(artifact: SmallArtifact) -> None:
    lease = artifact.lease()
    lease.close()
    lease.close()
    assert lease.closed
    for use in (lease.files, lambda: lease.tensor("scale"), lease.__enter__):
        with pytest.raises(WeightLeaseError, match="is closed; acquire it again"):
            use()


def replaced(made: SmallArtifact, **changes: object) -> Manifest:
    return msgspec.structs.replace(made.manifest, **changes)


def file_of(made: SmallArtifact, size: int) -> FileEntry:
    return msgspec.structs.replace(made.manifest.files[0], size=size)


def rewrite_header(path: Path, entry: dict[str, object]) -> None:
    data = path.read_bytes()
    old = struct.unpack("<Q", data[:8])[0]
    text = json.dumps({"w": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + old :])


@pytest.mark.parametrize("lazily", [False, True], ids=["decoded", "bytes"])
@pytest.mark.parametrize("name", ["", "\ud800", "\0", '"', 7, None, object()])
def test_whatever_is_no_tensors_name_is_a_key_error(
    artifact: SmallArtifact, lazily: bool, name: object
) -> None:
    with artifact.lease(lazily=lazily) as lease:
        assert name not in lease.tensors()
        with pytest.raises(KeyError):
            lease.buffer(name)  # type: ignore[arg-type]
