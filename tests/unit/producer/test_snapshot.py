"""A snapshot's identity follows from its files, and its bytes are the source's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from descriptors import open_descriptors
from recording_writer import RecordingWriter
from tensor_files import index_file, tensor_file
from weightlease.errors import SafetensorsFormatError
from weightlease.producer.snapshot import (
    SnapshotProducer,
    SnapshotSpec,
    snapshot,
    snapshot_folder,
)
from weightlease.reasons import Reason
from weightlease.source.errors import SourceError
from weightlease.source.folder import FolderSource, OpenFolderFile
from weightlease.source.model import CHUNK_BYTES, Phase, SourceFile, Waiting, patient


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(tensor_file({"w": b"1234"}))
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_files_are_streamed_verbatim_in_bounded_pieces(folder: Path) -> None:
    large = tensor_file({"w": bytes(CHUNK_BYTES * 2 + 17)})
    (folder / "model.safetensors").write_bytes(large)
    writer, done = RecordingWriter(), 0

    def progress(phase: Phase, count: int, _total: int) -> None:
        nonlocal done
        done += count if phase is Phase.PUBLISH else 0

    producer = snapshot_folder(str(folder), progress=progress)
    metadata = producer.produce(writer)
    assert writer.payloads == {"model.safetensors": large}
    assert writer.assets == {"config.json": b"{}"}
    assert writer.longest_write == CHUNK_BYTES
    assert done == producer.total_bytes == len(large) + 2
    assert metadata.format_metadata == {"format": "weightlease.snapshot-v1"}


def test_without_names_of_its_own_a_folder_is_its_path_and_its_fingerprint(folder: Path) -> None:
    source = snapshot_folder(str(folder)).identity.source
    assert source.model_id == str(folder)
    assert source.revision == source.fingerprint


def test_a_producer_that_nobody_runs_leaves_no_descriptor(folder: Path) -> None:
    before = open_descriptors()
    assert snapshot_folder(str(folder)).total_bytes
    assert open_descriptors() == before


def test_copies_share_a_key_only_where_model_and_revision_are_stated_equal(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copy = tmp_path_factory.mktemp("copy")
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())

    def key(path: Path, **stated: str) -> str:
        return snapshot_folder(str(path), **stated).identity.key  # type: ignore[arg-type]

    assert key(folder) != key(copy)
    assert key(folder, model_id="m") == key(copy, model_id="m")
    assert key(folder, model_id="m") != key(copy, model_id="m", revision="r")
    assert key(folder, model_id="m", component="a") != key(copy, model_id="m", component="b")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_any_changed_byte_changes_the_key(folder: Path, name: str) -> None:
    before = snapshot_folder(str(folder), model_id="m", revision="r").identity.key
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(content)
    assert snapshot_folder(str(folder), model_id="m", revision="r").identity.key != before


def test_files_that_are_left_out_do_not_enter_the_key(folder: Path) -> None:
    before = snapshot_folder(str(folder)).identity.key
    (folder / "pytorch_model.bin").write_bytes(b"x")
    (folder / ".gitattributes").write_bytes(b"x")
    assert snapshot_folder(str(folder)).identity.key == before


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (SnapshotSpec(model_id="m", expected_key="0" * 64), Reason.IDENTITY_MISMATCH),
        (SnapshotSpec(model_id="m", expected_fingerprint="0" * 64), Reason.SOURCE_CHANGED),
    ],
)
def test_another_source_than_expected_stops_before_a_byte_is_streamed(
    folder: Path, spec: SnapshotSpec, reason: Reason
) -> None:
    with FolderSource(str(folder)) as source, pytest.raises(SourceError) as caught:
        snapshot(source, spec)
    assert caught.value.reason is reason
    assert caught.value.failure.details["expected"] == "0" * 64


def test_a_sharded_component_is_what_its_index_names(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "1.safetensors").write_bytes(tensor_file({"a": b"1"}))
    (folder / "2.safetensors").write_bytes(tensor_file({"b": b"2"}))
    (folder / "old.safetensors").write_bytes(tensor_file({"a": b"0"}))
    (folder / "model.safetensors.index.json").write_bytes(
        index_file({"a": "1.safetensors", "b": "2.safetensors"})
    )
    writer = RecordingWriter()
    snapshot_folder(str(folder)).produce(writer)
    assert sorted(writer.payloads) == ["1.safetensors", "2.safetensors"]
    assert sorted(writer.assets) == ["config.json", "model.safetensors.index.json"]


def test_a_source_that_changes_before_it_is_streamed_is_source_changed(folder: Path) -> None:
    producer = snapshot_folder(str(folder))
    (folder / "model.safetensors").write_bytes(tensor_file({"w": b"9999"}))
    with pytest.raises(SourceError) as caught:
        producer.produce(RecordingWriter())
    assert caught.value.reason is Reason.SOURCE_CHANGED


def test_a_file_that_is_no_safetensors_keeps_the_stores_own_verdict(folder: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (folder / "model.safetensors").write_bytes(pointer)
    with pytest.raises(SafetensorsFormatError):
        snapshot_folder(str(folder)).produce(RecordingWriter())


class SlowSource(FolderSource):
    """Takes three steps of time to fetch a file, and calls its waiter at each."""

    now = 0.0

    @contextmanager
    def open(self, file: SourceFile, waiting: Waiting = patient) -> Iterator[OpenFolderFile]:
        for _ in range(3):
            self.now += 6.0
            waiting()
        with super().open(file) as opened:
            yield opened


class WaitingWriter(RecordingWriter):
    kept = 0

    def keep_alive(self) -> None:
        self.kept += 1


def test_a_writer_is_kept_alive_while_a_file_is_fetched(folder: Path) -> None:
    with SlowSource(str(folder)) as source:
        listed = snapshot(source, SnapshotSpec(model_id="m"))
        producer = SnapshotProducer(
            source, listed.selection, listed.identity, clock=lambda: source.now
        )
        writer = WaitingWriter()
        producer.produce(writer)
        producer.produce(RecordingWriter())
    # two files, each fetched in 18 s: once in ten
    assert writer.kept == 2
