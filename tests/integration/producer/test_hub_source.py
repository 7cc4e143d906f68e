"""The real huggingface_hub client against a server that obeys, refuses, lies and breaks."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hub_setup import TOKEN, HubSetup
from hubserver import Fault, FaultKind, HubServer
from recording_writer import RecordingWriter
from weightlease.producer.snapshot import SnapshotProducer, SnapshotSpec, snapshot, snapshot_folder
from weightlease.reasons import EXIT_STATUS, Reason
from weightlease.source.errors import SourceError
from weightlease.source.hub import HubAccess, HubSource
from weightlease.store.protocol import FileWriter

SPEC = SnapshotSpec(model_id="org/small")


def produced(source: HubSource) -> tuple[SnapshotProducer, RecordingWriter]:
    producer, writer = snapshot(source, SPEC), RecordingWriter()
    producer.produce(writer)
    return producer, writer


def refused(act: Callable[[], object]) -> SourceError:
    with pytest.raises(SourceError) as caught:
        act()
    return caught.value


def test_a_repository_and_a_folder_of_the_same_files_are_one_key_and_one_content(
    hub: HubSetup, folder: Path
) -> None:
    producer, writer = produced(hub.source())
    local, copy = (
        snapshot_folder(str(folder), model_id="org/small", revision=hub.repository.commit),
        RecordingWriter(),
    )
    local.produce(copy)
    assert producer.identity == local.identity
    assert (writer.payloads, writer.assets) == (copy.payloads, copy.assets)
    assert set(writer.assets) == {"config.json", "model.safetensors.index.json", "sub/vocab.txt"}
    assert producer.identity.source.revision == hub.repository.commit


def test_a_hub_that_stores_its_large_files_itself_is_read_as_well(
    hub: HubSetup, tmp_path: Path
) -> None:
    with HubServer([hub.repository]) as server:
        access = HubAccess(server.endpoint)
        commit = hub.repository.commit
        with HubSource("org/small", commit, scratch=str(tmp_path), access=access) as source:
            _, writer = produced(source)
    assert len(writer.payloads) == 2


def test_the_key_is_known_before_a_weight_byte_is_read(hub: HubSetup) -> None:
    snapshot(hub.source(), SPEC)
    assert not [
        seen
        for seen in hub.server.requests
        if "safetensors" in seen.path.rsplit("/")[-1] and not seen.path.endswith(".json")
    ]
    assert not [seen for seen in hub.server.requests if seen.origin == "storage"]


def test_one_shard_at_a_time_lies_in_the_scratch_folder_and_nothing_stays(hub: HubSetup) -> None:
    source = hub.source()
    producer = snapshot(source, SPEC)
    most = 0

    class Watching(RecordingWriter):
        @contextmanager
        def payload(self, name: str, size: int, sha256: str = "") -> Iterator[FileWriter]:
            nonlocal most
            found = [path for path in hub.scratch.rglob("*.safetensors") if path.is_file()]
            most = max(most, len(found))
            with super().payload(name, size, sha256) as file:
                yield file

    producer.produce(Watching())
    assert most == 1
    source.close()
    assert list(hub.scratch.iterdir()) == []


def test_a_component_is_a_folder_of_the_repository(folder: Path, hub: HubSetup) -> None:
    access = HubAccess(hub.server.endpoint)
    commit = hub.repository.commit
    with HubSource(
        "org/small", commit, scratch=str(hub.scratch), access=access, component_path="sub"
    ) as source:
        assert [file.path for file in source.files()] == ["vocab.txt"]


def test_the_token_goes_to_the_hub_and_to_nobody_else(private_hub: HubSetup) -> None:
    produced(private_hub.source(token=TOKEN))
    origins = {(seen.origin, seen.authorization) for seen in private_hub.server.requests}
    assert origins == {("hub", f"Bearer {TOKEN}"), ("storage", "")}


def test_a_page_link_to_another_host_does_not_get_the_token(private_hub: HubSetup) -> None:
    server = private_hub.server
    elsewhere = f'<http://127.0.0.1:{server.storage_port}/steal>; rel="next"'
    server.fault(Fault(FaultKind.LINK, "/tree/", headers={"Link": elsewhere}))
    refused(private_hub.source(token=TOKEN).files)
    assert [seen.authorization for seen in server.requests if seen.origin == "storage"] == [""]


def test_without_or_with_a_wrong_token_a_private_repository_is_unauthorized(
    private_hub: HubSetup,
) -> None:
    for token in ("", "hf_wrong"):
        error = refused(private_hub.source(token=token).files)
        assert error.reason is Reason.SOURCE_UNAUTHORIZED
        assert "tokenSecretRef" in error.failure.message


def test_a_gated_repository_says_that_its_terms_want_accepting(gated_hub: HubSetup) -> None:
    error = refused(gated_hub.source(token="hf_wrong").files)
    assert error.reason is Reason.SOURCE_UNAUTHORIZED
    assert "gated" in error.failure.message


@pytest.mark.parametrize("token", ["bad\ntoken", "tokén", "hf_wrong"])
def test_no_error_shows_the_token(private_hub: HubSetup, token: str) -> None:
    error = refused(private_hub.source(token=token).files)
    assert token not in error.failure.message
    assert token not in str(error.failure.details)


def test_a_missing_repository_revision_or_file_is_not_found(hub: HubSetup) -> None:
    assert refused(hub.source(revision="0" * 40).files).reason is Reason.SOURCE_NOT_FOUND
    missing = hub.source(repo="org/absent", token="t")
    assert refused(missing.files).reason is Reason.SOURCE_NOT_FOUND
    producer = snapshot(hub.source(), SPEC)
    hub.server.repositories["org/small"].files.pop("2.safetensors")
    error = refused(lambda: producer.produce(RecordingWriter()))
    assert error.reason is Reason.SOURCE_NOT_FOUND
    assert "2.safetensors" in error.failure.message


@pytest.mark.parametrize("revision", ["main", "v1.0", "ABCDEF" + "0" * 34, "0" * 39])
def test_a_revision_that_is_no_commit_is_refused_without_asking(
    hub: HubSetup, revision: str
) -> None:
    assert refused(lambda: hub.source(revision=revision)).reason is Reason.REQUEST_INVALID
    assert hub.server.requests == []


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, Reason.SOURCE_UNAUTHORIZED),
        (403, Reason.SOURCE_UNAUTHORIZED),
        (404, Reason.SOURCE_NOT_FOUND),
        (429, Reason.SOURCE_RATE_LIMITED),
        (500, Reason.SOURCE_UNAVAILABLE),
        (503, Reason.SOURCE_UNAVAILABLE),
    ],
)
@pytest.mark.parametrize("where", ["/tree/", "config.json", "1.safetensors"])
def test_a_status_becomes_its_reason_wherever_it_appears(
    hub: HubSetup, status: int, reason: Reason, where: str
) -> None:
    source = hub.source()
    hub.server.fault(Fault(FaultKind.STATUS, where, times=99, status=status))
    error = refused(lambda: produced(source))
    assert error.reason is reason
    assert error.failure.retryable is EXIT_STATUS[reason].retryable


def test_a_short_wait_that_the_hub_asks_for_is_kept_and_a_long_one_is_not(hub: HubSetup) -> None:
    patient = HubAccess(hub.server.endpoint, retries=2)
    commit = hub.repository.commit
    for wait, times in (("0", 1), ("86400", 1)):
        headers = {"Retry-After": wait}
        hub.server.fault(
            Fault(FaultKind.STATUS, "/tree/", times=times, status=429, headers=headers)
        )
    with HubSource("org/small", commit, scratch=str(hub.scratch), access=patient) as source:
        error = refused(source.files)
    assert error.reason is Reason.SOURCE_RATE_LIMITED
    assert "86400" in error.failure.message
    assert len(hub.server.requests) == 2


def test_a_long_wait_in_the_hubs_own_header_is_not_kept_either(hub: HubSetup) -> None:
    patient = HubAccess(hub.server.endpoint, retries=2)
    for seconds in ("0", "86400"):
        headers = {"RateLimit": f'"api";r=0;t={seconds}', "RateLimit-Policy": '"api";q=5;w=300'}
        hub.server.fault(Fault(FaultKind.STATUS, "/tree/", status=429, headers=headers))
    commit = hub.repository.commit
    with HubSource("org/small", commit, scratch=str(hub.scratch), access=patient) as source:
        error = refused(source.files)
    assert error.reason is Reason.SOURCE_RATE_LIMITED
    assert "86400" in error.failure.message
    assert len(hub.server.requests) == 2


@pytest.mark.parametrize(("status", "left"), [(503, 0), (503, 489), (429, 489)])
def test_a_failure_that_only_counts_requests_is_tried_again(
    hub: HubSetup, status: int, left: int
) -> None:
    patient = HubAccess(hub.server.endpoint, retries=2)
    headers = {"RateLimit": f'"api";r={left};t=189'}
    hub.server.fault(Fault(FaultKind.STATUS, "/tree/", status=status, headers=headers))
    commit = hub.repository.commit
    with HubSource("org/small", commit, scratch=str(hub.scratch), access=patient) as source:
        assert source.files()


@pytest.mark.parametrize("where", ["/tree/", "config.json", "/storage/"])
def test_a_compressed_answer_is_refused_before_anything_unpacks_it(
    hub: HubSetup, where: str
) -> None:
    hub.server.fault(Fault(FaultKind.COMPRESS, where, method="GET", times=9))
    error = refused(lambda: produced(hub.source()))
    assert error.reason is Reason.SOURCE_MALFORMED
    assert "compressed (gzip)" in error.failure.message


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"path": "n" * 300 + ".safetensors"}, "than 255"),
        ({"path": "n" * 300 + ".json"}, "than 255"),
        # what the client writes beside a file is longer than the file's own name
        ({"path": "n" * 240 + ".safetensors", "lfs": None}, "too long"),
        ({"path": "a\\..\\b.json"}, "plain"),
        ({"path": "/a.safetensors"}, "subfolder"),
        ({"path": "/a.json"}, "plain"),
        ({"size": 2**63}, "size"),
        ({"size": "10"}, "size"),
        ({"oid": "../../x"}, "digest"),
    ],
)
def test_a_listing_that_no_file_can_be_made_of_is_malformed_for_good(
    hub: HubSetup, entry: dict[str, object], told: str
) -> None:
    lfs = {"oid": "c" * 64, "size": 10, "pointerSize": 1}
    good = {"type": "file", "path": "a.safetensors", "size": 10, "oid": "b" * 40, "lfs": lfs}
    listed = (good, {**good, "path": "b.safetensors", **entry})
    hub.server.fault(Fault(FaultKind.LISTING, "/tree/", entries=listed))
    error = refused(lambda: snapshot(hub.source(), SPEC))
    assert error.reason is Reason.SOURCE_MALFORMED
    assert not error.failure.retryable
    assert told in error.failure.message


def test_a_hub_that_nobody_serves_is_unavailable(hub: HubSetup) -> None:
    source = hub.source()
    hub.server.__exit__(None, None, None)
    assert refused(source.files).reason is Reason.SOURCE_UNAVAILABLE


def test_right_size_and_wrong_bytes_are_a_checksum_mismatch_with_both_digests(
    hub: HubSetup,
) -> None:
    expected = hub.repository.files["1.safetensors"].sha256
    hub.server.fault(Fault(FaultKind.FLIP, f"/storage/{expected}"))
    error = refused(lambda: produced(hub.source()))
    assert error.reason is Reason.CHECKSUM_MISMATCH
    assert error.failure.details["expected"] == expected
    assert len(error.failure.details["actual"]) == 64
    assert error.failure.retryable


def test_a_small_file_with_a_flipped_byte_fails_its_git_digest(hub: HubSetup) -> None:
    hub.server.fault(Fault(FaultKind.FLIP, "config.json", method="GET"))
    error = refused(lambda: snapshot(hub.source(), SPEC))
    assert error.reason is Reason.CHECKSUM_MISMATCH
    assert error.failure.details["expected"] == hub.repository.files["config.json"].oid


def test_a_truncated_body_is_resumed(hub: HubSetup) -> None:
    digest = hub.repository.files["1.safetensors"].sha256
    hub.server.fault(Fault(FaultKind.TRUNCATE, f"/storage/{digest}"))
    _, writer = produced(hub.source())
    assert len(writer.payloads) == 2
    asked = [seen for seen in hub.server.requests if seen.path == f"/storage/{digest}"]
    assert len(asked) == 2


def test_a_body_that_stalls_ends_at_its_deadline_and_is_resumed(hub: HubSetup) -> None:
    digest = hub.repository.files["1.safetensors"].sha256
    hub.server.fault(Fault(FaultKind.STALL, f"/storage/{digest}"))
    _, writer = produced(hub.source())
    assert len(writer.payloads) == 2


def test_an_answer_for_another_commit_is_source_changed(hub: HubSetup) -> None:
    hub.server.fault(Fault(FaultKind.MOVED, "1.safetensors", times=9))
    assert refused(lambda: produced(hub.source())).reason is Reason.SOURCE_CHANGED


def test_a_file_longer_than_listed_does_not_fill_the_scratch_folder(
    hub: HubSetup, folder: Path
) -> None:
    producer = snapshot(hub.source(), SPEC)
    with open(folder / "1.safetensors", "ab") as grown:
        grown.write(bytes(1024 * 1024))
    listed = hub.repository.files["1.safetensors"]
    grown_file = replace(listed, size=os.path.getsize(listed.location))
    hub.server.repositories["org/small"].files["1.safetensors"] = grown_file
    error = refused(lambda: producer.produce(RecordingWriter()))
    assert error.reason is Reason.SOURCE_MALFORMED
    assert "exceeds" in error.failure.message


def test_nothing_is_written_outside_the_scratch_folder(
    hub: HubSetup, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    with contextlib.chdir(home):
        produced(hub.source())
    assert list(home.iterdir()) == []


def test_a_traceback_of_a_refusal_does_not_carry_the_token(private_hub: HubSetup) -> None:
    private_hub.server.fault(Fault(FaultKind.STATUS, "/tree/", times=9, status=500))
    error = refused(private_hub.source(token=TOKEN).files)
    assert TOKEN not in "".join(traceback.format_exception(error))
