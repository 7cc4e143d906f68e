"""The donor's life: private, alone at its socket, patient with its consumers, sure of its bytes."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from descriptors import open_descriptors
from donors import KEY, PATIENCE_SECONDS, RunningDonor, Small, small
from fake_ipc import FakeIpc
from weight_processes import running
from weightlease.gpu import WeightCacheClient, channel
from weightlease.gpu.arena import attach_segments
from weightlease.gpu.channel import PROTOCOL_VERSION, Answer, Ask
from weightlease.gpu.errors import (
    DonorBusyError,
    DonorUnavailableError,
    PeerRefusedError,
    UnsupportedError,
    WeightsChangedError,
)
from weightlease.gpu.fake import FakeDevice
from weightlease.unix_socket import Credentials

Donate = Callable[..., RunningDonor]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def connect(place: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(PATIENCE_SECONDS)
    connection.connect(str(place))
    return connection


def ask(device: FakeDevice) -> Ask:
    return Ask(PROTOCOL_VERSION, KEY, device.uuid, str(torch.__version__))


def closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_the_socket_and_its_directory_are_private(donate: Donate, place: Path) -> None:
    donate()
    assert os.stat(place).st_mode & 0o777 == 0o600
    assert os.stat(place.parent).st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_directory_that_others_can_reach_is_refused(
    donate: Donate, place: Path, mode: int
) -> None:
    place.parent.chmod(mode)
    assert isinstance(donate().error, PeerRefusedError)


def test_a_directory_behind_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    donor = RunningDonor(tmp_path / "link" / "x.sock")
    assert isinstance(donor.error, PeerRefusedError)


def test_a_missing_directory_is_no_donor(tmp_path: Path) -> None:
    client = WeightCacheClient(tmp_path / "none" / "x.sock", KEY, FakeDevice())
    with pytest.raises(DonorUnavailableError), client.load_model(Small):
        pass


def test_a_second_donor_cannot_take_an_active_donors_socket(donate: Donate, place: Path) -> None:
    first = donate()
    second = RunningDonor(place)
    assert isinstance(second.error, DonorBusyError)
    with first.client().load_model(Small):
        pass


def test_a_dead_donors_socket_is_replaced(donate: Donate, place: Path) -> None:
    with running("vmm", place) as process:
        process.kill()
        process.wait()
    assert place.exists()
    with pytest.raises(DonorUnavailableError):
        WeightCacheClient(place, KEY, FakeDevice()).attach(Small)
    with donate().client().load_model(Small):
        pass


def test_what_is_no_socket_is_never_replaced(donate: Donate, place: Path) -> None:
    place.write_text("mine")
    assert isinstance(donate().error, PeerRefusedError)
    assert place.read_text() == "mine"


def test_a_missing_donor_is_an_error_and_never_a_fallback(place: Path) -> None:
    built: list[int] = []

    def factory() -> Small:
        built.append(1)
        return Small()

    client = WeightCacheClient(place, KEY, FakeDevice())
    with pytest.raises(DonorUnavailableError) as raised:
        client.attach(factory)
    assert raised.value.failure.retryable
    assert built == []


def test_a_peer_of_another_user_is_dropped_before_its_bytes_are_read(
    donate: Donate, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    donor = donate()
    read: list[int] = []
    monkeypatch.setattr(channel, "receive_message", lambda *_: read.append(1))
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with connect(place) as connection:
        # The donor may be gone before anything could be sent.
        with suppress(BrokenPipeError):
            channel.send_message(connection, ask(donor.device))
        assert closed(connection)
    assert read == []


def test_a_consumer_drops_a_donor_of_another_user_before_it_sends_or_reads(
    donate: Donate, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = donate().client()
    monkeypatch.setattr(channel, "credentials_of", lambda _: Credentials(1, 12345))
    monkeypatch.setattr(channel, "send_message", lambda *_: pytest.fail("something was sent"))
    with pytest.raises(PeerRefusedError, match="uid 12345"):
        client.attach(Small)


def test_another_users_socket_is_not_even_connected_to(
    donate: Donate, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = donate().client()
    place.chmod(0o666)
    with pytest.raises(PeerRefusedError, match="private socket"):
        client.attach(Small)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x02{}",
        b"\xff\xff\xff\xff",
        b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00c" + b"os\nsystem\n",
    ],
)
def test_bytes_that_are_no_request_lose_their_connection_alone(
    donate: Donate, place: Path, garbage: bytes
) -> None:
    donor = donate()
    with connect(place) as connection:
        connection.sendall(garbage)
        connection.shutdown(socket.SHUT_WR)
        assert closed(connection)
    with donor.client().load_model(Small):
        pass


def test_a_request_of_another_version_is_refused(donate: Donate, place: Path) -> None:
    device = donate().device
    with connect(place) as connection:
        channel.send_message(connection, Ask(99, KEY, device.uuid, "2"))
        answer, fds = channel.receive_message(connection, Answer, descriptors=True)
    assert answer.refused is not None
    assert answer.refused.details["feature"] == "protocol"
    assert fds == []


def test_a_request_with_descriptors_is_dropped_and_they_are_closed(
    donate: Donate, place: Path
) -> None:
    device = donate().device
    before = len(open_descriptors())
    with connect(place) as connection, open("/dev/null", "rb") as null:
        channel.send_message(connection, ask(device), [null.fileno()] * 3)
        assert closed(connection)
    until(lambda: len(open_descriptors()) <= before)


def test_a_consumer_more_than_allowed_is_told_to_come_again(donate: Donate) -> None:
    donor = donate(max_consumers=1)
    first = donor.client().attach(Small)
    with pytest.raises(DonorUnavailableError, match="the most allowed"):
        donor.client().attach(Small)
    first.detach()

    def attaches() -> bool:
        try:
            donor.client().attach(Small).detach()
        except DonorUnavailableError:
            return False
        return True

    until(attaches)


def test_a_stopping_donor_admits_nobody_and_waits_for_its_consumers(
    donate: Donate, place: Path
) -> None:
    donor = donate()
    with donor.client().load_model(Small) as attached:
        donor.ask_to_stop()
        until(lambda: not place.exists())
        with pytest.raises(DonorUnavailableError):
            donor.client().attach(Small)
        assert donor.running
        assert attached.model.inner.weight.shape == (5, 7)
    report = donor.end()
    assert report is not None
    assert report.granted == 1


def test_a_killed_consumer_does_not_hold_its_donor(donate: Donate, place: Path) -> None:
    donor = donate()
    with running("attach", place) as process:
        process.kill()
        process.wait()
    assert donor.end() is not None


def test_a_consumer_goes_on_when_its_donor_is_killed(place: Path) -> None:
    with (
        running("vmm", place) as process,
        WeightCacheClient(place, KEY, FakeDevice()).load_model(Small) as attached,
    ):
        process.kill()
        process.wait()
        assert torch.equal(attached.model.inner.weight, small().inner.weight)


def test_a_donor_that_does_not_answer_is_given_up_at_the_deadline(place: Path) -> None:
    # as a stopped process does: the kernel still takes connections for it
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(place))
        place.chmod(0o600)
        silent.listen(1)
        before = len(open_descriptors())
        client = WeightCacheClient(place, KEY, FakeDevice(), deadline_seconds=0.2)
        with pytest.raises(DonorUnavailableError, match="does not answer") as raised:
            client.attach(Small)
        assert raised.value.failure.retryable
        assert len(open_descriptors()) == before


def test_a_consumer_that_never_goes_on_holds_nobody_but_itself(donate: Donate, place: Path) -> None:
    donor = donate()
    with connect(place) as half, connect(place) as unread:
        half.sendall(b"\0\0")
        channel.send_message(unread, ask(donor.device))
        for _ in range(3):
            with donor.client().load_model(Small):
                pass
    report = donor.end()
    assert report is not None
    assert report.granted == 4


def test_every_start_of_a_donor_is_another_donor(donate: Donate) -> None:
    first = donate()
    with first.client().load_model(Small) as attached:
        one = attached.donor
    first.end()
    with donate().client().load_model(Small) as attached:
        assert attached.donor != one


def test_the_final_fingerprint_equals_the_first(donate: Donate) -> None:
    report = donate().end()
    assert report is not None
    assert len(report.fingerprint) == 64


@pytest.mark.parametrize("swap", [False, True])
def test_a_hostile_write_is_found_at_the_end_and_named(
    donate: Donate, place: Path, swap: bool
) -> None:
    donor = donate()
    with connect(place) as connection:
        channel.send_message(connection, ask(donor.device))
        answer, fds = channel.receive_message(connection, Answer, descriptors=True)
        assert answer.granted is not None
        mapping = attach_segments(FakeDevice(), fds[1:], answer.granted.segments, writable=True)
        channel.close_descriptors(fds)
    words = mapping.tensor().view(torch.int32)
    if swap:
        words[0], words[1] = int(words[1]), int(words[0])
    else:
        words[0] += 1
    donor.end()
    assert isinstance(donor.error, WeightsChangedError)
    assert "embed.weight" in donor.error.names


class Unfinished(FakeDevice):
    """A device with work under way, which is done once somebody waits for it."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self.work = [work]

    def synchronize(self) -> None:
        super().synchronize()
        while self.work:
            self.work.pop()()


@pytest.mark.parametrize("transport", ["vmm", "cuda-ipc"])
def test_weights_that_are_still_being_written_are_waited_for_before_they_are_lent(
    donate: Donate, transport: str
) -> None:
    model = small()
    late = model.inner.weight.detach()
    donor = donate(
        model,
        device=Unfinished(lambda: late.fill_(7)),
        transport=transport,
        storage_transport=FakeIpc(),
    )
    with donor.client(storage_transport=FakeIpc()).load_model(Small) as attached:
        lent = attached.model.inner.weight.tolist()
    assert lent == [[7.0] * 7] * 5
    assert donor.end() is not None, "the fingerprint was taken of finished weights"


def test_a_refused_transport_is_named(donate: Donate) -> None:
    error = donate(transport="tcp").error
    assert isinstance(error, UnsupportedError)
    assert error.feature == "transport"


def test_a_donor_gives_its_descriptors_back(donate: Donate, place: Path) -> None:
    before = len(open_descriptors())
    donor = donate()
    donor.end()
    assert len(open_descriptors()) == before
    assert not place.exists()


def test_a_device_without_room_ends_the_donor_before_it_answers(
    donate: Donate, place: Path
) -> None:
    device = FakeDevice()
    device.fail["create"] = "CUDA_ERROR_OUT_OF_MEMORY"
    donor = donate(device=device)
    assert "OUT_OF_MEMORY" in str(donor.error)
    assert not place.exists()
    weights = dict(donor.model.named_parameters())
    assert torch.equal(weights["inner.weight"], small().inner.weight)
