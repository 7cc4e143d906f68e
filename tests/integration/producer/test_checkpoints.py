"""Real public checkpoints keep the keys they were first given."""

from __future__ import annotations

from pathlib import Path

from checkpoints import MINILM, MINILM_WEIGHTS_SHA256, minilm_folder, silero_folder
from hubserver import HubServer, load_repository
from recording_writer import RecordingWriter
from weightlease.producer.snapshot import SnapshotSpec, snapshot, snapshot_folder
from weightlease.source.hub import HubAccess, HubSource

COMMIT = "1110a243fdf4706b3f48f1d95db1a4f5529b4d41"
MINILM_FINGERPRINT = "4426ff38ab7c525dd6f00526c60bc67cda81c0531c02656a19d44c3ba2b57ce1"
MINILM_KEY = "5163c5ab7bb9563aead25f6ae3f7e0ed273c2ac6e130c6ed27dca380540a64e1"


def test_minilm_from_a_folder_keeps_its_fingerprint_and_key() -> None:
    producer = snapshot_folder(str(minilm_folder()), model_id=MINILM)
    assert producer.identity.source.fingerprint == MINILM_FINGERPRINT
    assert producer.identity.key == MINILM_KEY
    payload = producer.selection.payload
    assert [(file.path, file.sha256) for file in payload] == [
        ("model.safetensors", MINILM_WEIGHTS_SHA256)
    ]
    assert "tokenizer.json" in {file.path for file in producer.selection.assets}


def test_minilm_from_folder_and_hub_is_one_artifact_where_model_and_revision_are_equal(
    tmp_path: Path,
) -> None:
    folder = str(minilm_folder())
    repository = load_repository(MINILM, folder, commit=COMMIT)
    with HubServer([repository], separate_storage=True) as server:
        access = HubAccess(server.endpoint)
        with HubSource(MINILM, COMMIT, scratch=str(tmp_path), access=access) as source:
            from_hub = snapshot(source, SnapshotSpec(model_id=MINILM))
            hub_copy = RecordingWriter()
            from_hub.produce(hub_copy)
    stated = snapshot_folder(folder, model_id=MINILM, revision=COMMIT)
    local_copy = RecordingWriter()
    stated.produce(local_copy)
    assert from_hub.identity == stated.identity
    assert hub_copy.payloads == local_copy.payloads
    assert hub_copy.assets == local_copy.assets
    unstated = snapshot_folder(folder, model_id=MINILM)
    assert unstated.identity.source.fingerprint == from_hub.identity.source.fingerprint
    assert unstated.identity.key != from_hub.identity.key


def test_silero_publishes_its_safetensors_and_none_of_the_formats_beside_it() -> None:
    producer = snapshot_folder(str(silero_folder()), model_id="silero-vad")
    writer = RecordingWriter()
    producer.produce(writer)
    assert list(writer.payloads) == ["silero_vad_16k.safetensors"]
    assert not [path for path in writer.assets if path.endswith((".jit", ".onnx", ".py"))]
