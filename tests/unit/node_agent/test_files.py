"""What the agent keeps on disk and around its socket."""

from __future__ import annotations

import array
import asyncio
import os
import socket
import time
from pathlib import Path

import msgspec
import pytest

from descriptors import open_descriptors
from weightlease.errors import ProtocolError, WeightLeaseError
from weightlease.names import StorageClass
from weightlease_node_agent.channel import Channel, Drop, PeerLostError, unread_bytes
from weightlease_node_agent.domains import Domains, Place
from weightlease_node_agent.exports import Export, FileMark
from weightlease_node_agent.leader import Leadership
from weightlease_node_agent.pins import KeyedLocks
from weightlease_node_agent.records import MAX_RECORD_BYTES, UNMANAGED, Records
from weightlease_node_agent.server import SocketServer
from weightlease_node_agent.settings import AuthMode, Settings

KEY = "a" * 64


# ---- records ----


def test_a_record_survives_a_restart_and_ends_with_its_artifact(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.add(KEY, "team-a/x:model@", 2)
    records.add(KEY, "team-a/y:model@", 1)
    again = Records(tmp_path)
    assert again.of(KEY) == {"team-a/x:model@": 2, "team-a/y:model@": 1}
    again.remove(KEY)
    assert Records(tmp_path).of(KEY) == {}


def test_a_record_that_another_agent_writes_or_removes_is_seen(tmp_path: Path) -> None:
    ours, theirs = Records(tmp_path), Records(tmp_path)
    assert ours.of(KEY) == {}
    theirs.add(KEY, "team-a/x:model@", 1)
    assert ours.of(KEY) == {"team-a/x:model@": 1}
    ours.add(KEY, "team-a/y:model@", 1)
    assert theirs.of(KEY) == {"team-a/x:model@": 1, "team-a/y:model@": 1}
    theirs.remove(KEY)
    assert ours.of(KEY) == {}


def test_the_end_of_the_last_lease_survives_a_restart_and_goes_with_the_artifact(
    tmp_path: Path,
) -> None:
    records = Records(tmp_path)
    assert records.last_use(KEY) == 0
    before = time.time()
    records.note_use(KEY)
    assert abs(Records(tmp_path).last_use(KEY) - before) < 60
    assert Records(tmp_path).of(KEY) == {}
    (tmp_path / "agent" / f".{KEY}.left").touch()
    records.remove(KEY)
    assert records.last_use(KEY) == 0
    assert list((tmp_path / "agent").iterdir()) == []


def test_the_release_before_reads_what_this_one_has_written(tmp_path: Path) -> None:
    class MadeFor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        schema_version: int
        key: str
        made_for: dict[str, int] = {}

    records = Records(tmp_path)
    records.add(KEY, UNMANAGED, 0)
    records.note_use(KEY)
    (path,) = (tmp_path / "agent").glob("*.json")
    read = msgspec.json.decode(path.read_bytes(), type=MadeFor, strict=True)
    assert read == MadeFor(1, KEY, {UNMANAGED: 0})


def test_older_keys_are_those_of_earlier_generations_newest_first(tmp_path: Path) -> None:
    records = Records(tmp_path)
    for generation, letter in ((1, "a"), (2, "b"), (3, "c")):
        records.add(letter * 64, "e", generation)
    assert records.older_keys("e", 3) == ["b" * 64, "a" * 64]
    assert records.older_keys("other", 3) == []


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[" * 10000, b"x" * (MAX_RECORD_BYTES + 1), b'{"key": "' + b"b" * 64]
)
def test_a_file_that_is_no_record_is_passed_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / f"{KEY}.json").write_bytes(content)
    (tmp_path / "agent" / "notes.json").write_bytes(b"{}")
    assert Records(tmp_path).of(KEY) == {}


# ---- domains and exports ----


def test_domains_are_found_again_and_strangers_left_alone(tmp_path: Path) -> None:
    roots = {StorageClass.DISK: tmp_path / "disk"}
    Domains(roots, {}, "node").open(Place("team-a", StorageClass.DISK))
    (tmp_path / "disk" / "lost+found").mkdir()
    (tmp_path / "disk" / "link").symlink_to("team-a")
    found = Domains(roots, {}, "node")
    found.discover()
    assert [domain.place.namespace for domain in found.all()] == ["team-a"]


@pytest.mark.parametrize("name", ["..", ".", "a/b", "A", "", "a" * 64, "lost+found"])
def test_a_domain_is_named_by_a_dns_label(tmp_path: Path, name: str) -> None:
    domains = Domains({StorageClass.DISK: tmp_path}, {}, "node")
    with pytest.raises(WeightLeaseError):
        domains.open(Place(name, StorageClass.DISK))
    assert os.listdir(tmp_path) == []


def test_another_file_than_the_validated_one_is_not_handed_out(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"one")
    mark = FileMark.of(path.stat())
    export = Export(tmp_path, None)
    os.close(export.open(path, mark))
    path.rename(tmp_path / "kept")
    path.write_bytes(b"two")
    with pytest.raises(WeightLeaseError, match="not the file that was validated"):
        export.open(path, mark)


def test_a_link_is_not_followed_out_of_the_store(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.symlink_to("/etc/passwd")
    with pytest.raises(WeightLeaseError):
        Export(tmp_path, None).open(path, FileMark.of(os.stat("/etc/passwd")))


def test_a_writable_mount_is_no_export(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"one")
    export = Export(tmp_path, tmp_path)
    with pytest.raises(WeightLeaseError, match="writable"):
        export.check()
    with pytest.raises(WeightLeaseError, match="writable"):
        export.open(path, FileMark.of(path.stat()))


# ---- leadership and socket ----


def test_one_agent_leads_and_the_next_takes_over(tmp_path: Path) -> None:
    first, second = Leadership(tmp_path), Leadership(tmp_path)
    assert first.try_take()
    assert first.try_take()
    assert not second.try_take()
    first.release()
    assert second.try_take()
    second.release()


async def test_the_socket_is_replaced_at_once_and_removed_only_while_ours(tmp_path: Path) -> None:
    path = tmp_path / "run" / "agent.sock"
    old, new = SocketServer(path, lambda _: None), SocketServer(path, lambda _: None)
    old.start()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o666, 0o755)
    assert old.listening
    new.start()
    assert (old.listening, new.listening) == (False, True)
    old.stop()
    assert path.exists()
    new.stop()
    assert os.listdir(path.parent) == []


# ---- the channel ----


async def test_a_folder_in_the_sockets_place_goes_if_it_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    path.mkdir()
    server = SocketServer(path, socket.socket.close)
    server.start()
    assert server.listening
    server.stop()
    (path / "file").parent.mkdir()
    (path / "file").touch()
    with pytest.raises(OSError, match="a folder stands where the socket belongs"):
        server.start()
    assert os.listdir(tmp_path) == ["agent.sock"]


async def test_descriptors_from_a_peer_are_closed() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(ours)
        before = open_descriptors()
        rights = array.array("i", [theirs.fileno()] * 5)
        theirs.sendmsg([b"\0\0\0\2{}"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        with pytest.raises(ProtocolError):
            await channel.receive_frame(idle=5, frame=5, late=Drop.IDLE_TIMEOUT)
        assert open_descriptors() == before


@pytest.mark.parametrize(
    ("said", "reason"), [(b"", Drop.HELLO_TIMEOUT), (b"\0\0\0\2{", Drop.FRAME_TIMEOUT)]
)
async def test_silence_has_an_end(said: bytes, reason: Drop) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(said)
        with pytest.raises(PeerLostError) as lost:
            await Channel(ours).receive_frame(idle=0.05, frame=0.05, late=Drop.HELLO_TIMEOUT)
        assert lost.value.reason is reason


async def test_a_peer_that_does_not_read_is_lost() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(ours)
        with pytest.raises(PeerLostError) as lost:
            await channel.send_frame(bytes(16 * 1024 * 1024), (), 0.05)
        assert lost.value.reason is Drop.SEND_TIMEOUT
        assert unread_bytes(ours) > 0
        with pytest.raises(PeerLostError):
            await channel.drained(0.05)


async def test_a_close_between_frames_is_no_error_and_one_inside_is() -> None:
    for said, expected in ((b"", None), (b"\0", PeerLostError)):
        ours, theirs = socket.socketpair()
        with ours:
            theirs.sendall(said)
            theirs.close()
            channel = Channel(ours)
            if expected is None:
                assert await channel.receive_frame(idle=5, frame=5, late=Drop.IDLE_TIMEOUT) is None
            else:
                with pytest.raises(PeerLostError):
                    await channel.receive_frame(idle=5, frame=5, late=Drop.IDLE_TIMEOUT)


async def test_locks_of_made_up_keys_leave_nothing_behind() -> None:
    locks = KeyedLocks()
    entered: list[int] = []

    async def use(number: int) -> None:
        async with locks.hold(number % 3):
            entered.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(use(number) for number in range(30)))
    assert sorted(entered) == list(range(30))
    assert locks._locks == {}


# ---- settings ----


def test_settings_come_from_flags_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIGHTLEASE_NODE_NAME", "node-7")
    monkeypatch.setenv("WEIGHTLEASE_ALLOWED_UIDS", "0, 1000")
    monkeypatch.setenv("WEIGHTLEASE_LIMITS__HELLO_SECONDS", "2.5")
    monkeypatch.setenv("WEIGHTLEASE_MEMORY_ROOT", "")
    settings = Settings(auth=AuthMode.UID)
    assert (settings.node_name, settings.auth) == ("node-7", AuthMode.UID)
    assert settings.allowed_uids == {0, 1000}
    assert settings.limits.hello_seconds == 2.5
    assert list(settings.roots) == [StorageClass.DISK]


@pytest.mark.parametrize(
    "wrong",
    [
        {"disk_root": ""},
        {"memory_export": "/export"},
        {"limits": {"hello_seconds": 0}},
        {"limits": {"helo_seconds": 1}},
        {"http_port": 70000},
        {"auth": "none"},
        {"node_name": ""},
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        Settings.model_validate(wrong)
