"""Publishing through a scripted agent: what goes over the socket, and every way it can end."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load

from descriptors import open_descriptors
from scripted_agent import Peer, ScriptedAgent
from small_artifact import SmallArtifact, identity
from weightlease import wire
from weightlease.client import AgentStore, AgentUnreachableError, ClientSettings, Publication
from weightlease.errors import Failure, FailureCode, Stage, WeightLeaseError
from weightlease.identity import WeightArtifactIdentity
from weightlease.reports import StoreStatus
from weightlease.store.protocol import ArtifactWriter, ProductionMetadata, TensorSpec

METADATA = ProductionMetadata("manifest-v1", "restorer-v1", {"format": "test"})
PUBLISHED = wire.FinalizeResult(identity().key, "1" * 64, "2" * 64, "publication", 3)
BUILD = wire.BeginResult(wire.PublicationStatus.BUILD, identity().key)
PRESENT = wire.BeginResult(wire.PublicationStatus.PRESENT, identity().key, "3" * 64, 9)
NO_SPACE = Failure(Stage.CAPACITY, FailureCode.ENOSPC, retryable=True, message="the disk is full")


def store(path: Path, timeout: float = 10.0) -> AgentStore:
    return AgentStore(settings=ClientSettings(socket_path=str(path), timeout=timeout))


def take_file(peer: Peer, size: int) -> tuple[wire.FileDeclaration, list[int], bytes]:
    """Serve one whole file: its declaration, the sizes of its writes, its bytes."""
    declared = peer.answer("declare", wire.Empty())
    assert isinstance(declared, wire.DeclareParams)
    peer.answer("open_file", wire.Empty())
    sizes, data = [], b""
    while len(data) < size:
        _, params = peer.request("write")
        assert isinstance(params, wire.WriteParams)
        sizes.append(params.nbytes)
        data += peer.read(params.nbytes)
    peer.answer("close_file", wire.CloseFileResult(len(data), "0" * 64))
    return declared.files[0], sizes, data


@pytest.mark.parametrize("seconds", [float("inf"), 1e300, 3e6])
def test_a_wait_longer_than_the_kernel_and_the_wire_can_say_is_a_long_one(
    socket_path: Path, seconds: float
) -> None:
    asked: list[float] = []

    def play(peer: Peer) -> None:
        peer.hello()
        request_id, params = peer.request("begin_publication")
        assert isinstance(params, wire.BeginParams)
        asked.append(params.wait_seconds)
        peer.send(wire.encode_result(request_id, PRESENT))

    with ScriptedAgent(socket_path, play), store(socket_path, timeout=1e9) as agent:
        assert agent.begin(identity(), 1, wait_seconds=seconds).present
    assert 24 * 3600 < asked[0] <= seconds


def test_files_are_streamed_in_large_pieces_without_an_answer_to_each(socket_path: Path) -> None:
    body = bytes(range(256)) * (5 * wire.MAX_WRITE_BYTES // 512)
    taken: list[tuple[wire.FileDeclaration, list[int], bytes]] = []
    ends: list[object] = []

    def play(peer: Peer) -> None:
        peer.hello()
        begun = peer.answer("begin_publication", BUILD)
        assert begun == wire.BeginParams(
            identity().to_dict(), 100, 5.0, storage_class="memory", namespace="team-a"
        )
        taken.append(take_file(peer, len(body)))
        taken.append(take_file(peer, 2))
        ends.append(peer.answer("finalize", PUBLISHED))

    with (
        ScriptedAgent(socket_path, play),
        store(socket_path) as agent,
        agent.begin(
            identity(), 100, wait_seconds=5.0, storage_class="memory", namespace="team-a"
        ) as publication,
    ):
        assert not publication.present
        with publication.payload("m.safetensors", len(body), "a" * 64) as file:
            file.write(memoryview(body).cast("I"))
        with publication.asset("1_Pooling/config.json", 2) as file:
            file.write(bytearray(b"{"))
            file.write(b"}")
        result = publication.finalize(METADATA, expected_manifest_sha256="1" * 64)
    assert result == PUBLISHED
    (payload, sizes, data), (asset, _, text) = taken
    assert payload == wire.FileDeclaration(
        "m.safetensors", wire.FileKind.PAYLOAD, len(body), "a" * 64
    )
    assert sizes == [wire.MAX_WRITE_BYTES, wire.MAX_WRITE_BYTES, wire.MAX_WRITE_BYTES // 2]
    assert data == body
    assert asset == wire.FileDeclaration("1_Pooling/config.json", wire.FileKind.ASSET, 2)
    assert text == b"{}"
    assert ends == [wire.FinalizeParams("manifest-v1", "restorer-v1", {"format": "test"}, "1" * 64)]


def test_tensors_become_a_file_that_safetensors_reads(socket_path: Path) -> None:
    specs = (
        TensorSpec("w", "F32", (2, 2)),
        TensorSpec("e", "U8", (0,)),
        TensorSpec("b", "U8", (3,)),
    )
    data: list[bytes] = []

    def play(peer: Peer) -> None:
        peer.hello()
        peer.answer("begin_publication", BUILD)
        declared = peer.answer("declare", wire.Empty())
        assert isinstance(declared, wire.DeclareParams)
        peer.answer("open_file", wire.Empty())
        while len(b"".join(data)) < declared.files[0].size:
            _, params = peer.request("write")
            assert isinstance(params, wire.WriteParams)
            data.append(peer.read(params.nbytes))
        peer.answer("close_file", wire.CloseFileResult(declared.files[0].size, "0" * 64))
        peer.answer("abort", wire.Empty())

    with (
        ScriptedAgent(socket_path, play),
        store(socket_path) as agent,
        agent.begin(identity(), 1000) as publication,
        publication.tensors("m.safetensors", specs) as file,
    ):
        file.write("w", struct.pack("<4f", 1, 2, 3, 4))
        file.write("b", b"a")
        file.write("b", b"bc")
    arrays = load(b"".join(data))
    assert arrays["w"].tolist() == [[1, 2], [3, 4]]
    assert arrays["b"].tolist() == list(b"abc")


def test_a_present_artifact_needs_no_bytes(socket_path: Path) -> None:
    def play(peer: Peer) -> None:
        peer.hello()
        peer.answer("begin_publication", PRESENT)
        peer.answer("inspect", wire.InspectResult(()))

    with ScriptedAgent(socket_path, play), store(socket_path) as agent:
        with agent.begin(identity(), 100) as publication:
            assert publication.present
            assert publication.manifest_sha256 == "3" * 64
            with pytest.raises(WeightLeaseError, match="is over"):
                publication.finalize(METADATA)
        assert agent.inspect_artifacts().artifacts == (), "the connection goes on"


Misuse = Callable[[Publication], None]


def too_many_bytes(publication: Publication) -> None:
    with publication.payload("m.safetensors", 2) as file:
        file.write(b"abc")


def too_few_bytes(publication: Publication) -> None:
    with publication.payload("m.safetensors", 2) as file:
        file.write(b"a")


def tensors_out_of_order(publication: Publication) -> None:
    specs = (TensorSpec("a", "U8", (1,)), TensorSpec("b", "U8", (1,)))
    with publication.tensors("m.safetensors", specs) as file:
        file.write("b", b"x")


def a_tensor_that_is_too_long(publication: Publication) -> None:
    with publication.tensors("m.safetensors", (TensorSpec("a", "U8", (1,)),)) as file:
        file.write("a", b"xy")


def a_tensor_that_is_missing(publication: Publication) -> None:
    specs = (TensorSpec("a", "U8", (1,)), TensorSpec("b", "U8", (1,)))
    with publication.tensors("m.safetensors", specs) as file:
        file.write("a", b"x")


@pytest.mark.parametrize(
    "misuse",
    [
        too_many_bytes,
        too_few_bytes,
        tensors_out_of_order,
        a_tensor_that_is_too_long,
        a_tensor_that_is_missing,
    ],
)
def test_bytes_that_do_not_fit_the_declaration_abort_the_publication(
    socket_path: Path, misuse: Misuse, descriptors: list[str]
) -> None:
    aborted: list[bool] = []

    def play(peer: Peer) -> None:
        peer.hello()
        peer.answer("begin_publication", BUILD)
        peer.answer("declare", wire.Empty())
        peer.answer("open_file", wire.Empty())
        while True:
            request, params = wire.decode_request(peer.read(wire.frame_length(peer.read(4))))
            if isinstance(params, wire.WriteParams):
                peer.read(params.nbytes)
                continue
            assert request.method == "abort"
            peer.send(wire.encode_result(request.id, wire.Empty()))
            aborted.append(True)
            break

    with (
        ScriptedAgent(socket_path, play),
        store(socket_path) as agent,
        agent.begin(identity(), 1000) as publication,
        pytest.raises(WeightLeaseError) as error,
    ):
        misuse(publication)
    assert error.value.failure.code is FailureCode.PRODUCER_FAILED
    assert aborted == [True]
    assert open_descriptors() == descriptors


def test_a_producer_that_was_cut_off_learns_why_before_its_next_write(socket_path: Path) -> None:
    def play(peer: Peer) -> None:
        peer.hello()
        peer.answer("begin_publication", BUILD)
        peer.answer("declare", wire.Empty())
        peer.answer("open_file", wire.Empty())
        request_id, _ = peer.request("write")
        peer.read(4)
        peer.send(wire.encode_error(request_id, NO_SPACE))
        peer.answer_abort_after_writes()

    with ScriptedAgent(socket_path, play), store(socket_path) as agent:
        publication = agent.begin(identity(), 10**9)
        with pytest.raises(WeightLeaseError) as error:
            write_for_long(publication)
        publication.abort()
    assert error.value.failure == NO_SPACE


def write_for_long(publication: Publication) -> None:
    with publication.payload("m.safetensors", 10**9) as file:
        for _ in range(10**6):
            file.write(b"data")


@pytest.mark.parametrize("drains", [True, False], ids=["drains", "stops-reading"])
def test_a_producer_in_the_middle_of_a_large_write_learns_why_too(
    socket_path: Path, drains: bool
) -> None:
    def play(peer: Peer) -> None:
        peer.hello()
        peer.answer("begin_publication", BUILD)
        peer.answer("declare", wire.Empty())
        peer.answer("open_file", wire.Empty())
        request_id, params = peer.request("write")
        assert isinstance(params, wire.WriteParams)
        peer.read(params.nbytes if drains else 100)
        peer.send(wire.encode_error(request_id, NO_SPACE))
        if drains:
            peer.wait_for_close()
        else:
            told.wait()

    told = threading.Event()
    size = 4 * wire.MAX_WRITE_BYTES
    with ScriptedAgent(socket_path, play), store(socket_path) as agent:
        publication = agent.begin(identity(), size)
        with (
            pytest.raises(WeightLeaseError) as error,
            publication.payload("m.safetensors", size) as file,
        ):
            file.write(bytes(size))
        told.set()
    assert error.value.failure == NO_SPACE


def test_an_error_that_crosses_a_request_reaches_the_producer_once(socket_path: Path) -> None:
    def play(peer: Peer) -> None:
        peer.hello()
        peer.answer("begin_publication", BUILD)
        peer.answer("declare", wire.Empty())
        peer.answer("open_file", wire.Empty())
        write_id, _ = peer.request("write")
        peer.read(1)
        close_id, _ = peer.request("close_file")
        peer.send(wire.encode_error(write_id, NO_SPACE) + wire.encode_error(close_id, NO_SPACE))
        peer.answer("abort", wire.Empty())

    with (
        ScriptedAgent(socket_path, play),
        store(socket_path) as agent,
        agent.begin(identity(), 10) as publication,
        pytest.raises(WeightLeaseError) as error,
        publication.payload("m.safetensors", 1) as file,
    ):
        file.write(b"x")
    assert error.value.failure == NO_SPACE


STEPS = ("begin_publication", "declare", "open_file", "write", "close_file", "finalize")
RESULTS = {
    "begin_publication": BUILD,
    "declare": wire.Empty(),
    "open_file": wire.Empty(),
    "close_file": wire.CloseFileResult(1, "0" * 64),
}


@pytest.mark.parametrize("fatal", STEPS)
def test_an_agent_that_dies_at_any_step_is_told_and_nothing_is_begun_again(
    socket_path: Path, fatal: str, descriptors: list[str]
) -> None:
    """One script: a silent second attempt would find nobody and hang its test."""

    def play(peer: Peer) -> None:
        peer.hello()
        for step in STEPS:
            if step == "write":
                peer.request("write")
                if fatal == "write":
                    return
                peer.read(1)
            elif step == fatal:
                peer.request(step)
                return
            else:
                peer.answer(step, RESULTS[step])

    def publish(agent: AgentStore) -> None:
        with agent.begin(identity(), 10) as publication:
            with publication.payload("m.safetensors", 1) as file:
                file.write(b"x")
            publication.finalize(METADATA)

    with (
        ScriptedAgent(socket_path, play),
        store(socket_path) as agent,
        pytest.raises(AgentUnreachableError) as error,
    ):
        publish(agent)
    assert error.value.broken
    assert open_descriptors() == descriptors


class Producer:
    expected_manifest_sha256 = "1" * 64

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    @property
    def identity(self) -> WeightArtifactIdentity:
        return identity()

    @property
    def total_bytes(self) -> int:
        return 3

    def produce(self, writer: ArtifactWriter) -> ProductionMetadata:
        if self._error is not None:
            raise self._error
        with writer.payload("m.safetensors", 3) as file:
            file.write(b"xyz")
        return METADATA


def miss(peer: Peer) -> None:
    request_id, _ = peer.request("acquire")
    absent = Failure(Stage.LOOKUP, FailureCode.LOCAL_MISS, retryable=True, message="absent")
    peer.send(wire.encode_error(request_id, absent))


def test_get_or_build_builds_once_and_leases(socket_path: Path, artifact: SmallArtifact) -> None:
    def play(peer: Peer) -> None:
        peer.hello()
        miss(peer)
        peer.answer("begin_publication", BUILD)
        take_file(peer, 3)
        finalized = peer.answer("finalize", PUBLISHED)
        assert isinstance(finalized, wire.FinalizeParams)
        assert finalized.expected_manifest_sha256 == "1" * 64
        peer.grant(artifact)

    with ScriptedAgent(socket_path, play), store(socket_path) as agent:
        built = agent.get_or_build(Producer())
        assert built.status is StoreStatus.BUILT
        assert built.lease is not None
        built.lease.close()


def test_get_or_build_joins_another_builder(socket_path: Path, artifact: SmallArtifact) -> None:
    def play(peer: Peer) -> None:
        peer.hello()
        miss(peer)
        peer.answer("begin_publication", PRESENT)
        peer.grant(artifact)

    with ScriptedAgent(socket_path, play), store(socket_path) as agent:
        joined = agent.get_or_build(Producer())
        assert joined.status is StoreStatus.JOINED
        assert joined.lease is not None
        joined.lease.close()


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (RuntimeError("a bug"), FailureCode.PRODUCER_FAILED),
        (WeightLeaseError(NO_SPACE), FailureCode.ENOSPC),
    ],
)
def test_a_producer_that_raises_publishes_nothing_and_its_failure_is_the_outcome(
    socket_path: Path, raised: Exception, code: FailureCode
) -> None:
    def play(peer: Peer) -> None:
        peer.hello()
        miss(peer)
        peer.answer("begin_publication", BUILD)
        peer.answer("abort", wire.Empty())

    with ScriptedAgent(socket_path, play), store(socket_path) as agent:
        failed = agent.get_or_build(Producer(raised))
    assert failed.status is StoreStatus.FAILED
    assert failed.failure is not None
    assert failed.failure.code is code


def test_waiting_too_long_for_another_builder_is_a_timeout(socket_path: Path) -> None:
    busy = Failure(Stage.LOOKUP, FailureCode.ACTIVE_BUILD_TIMEOUT, retryable=True, message="busy")

    def play(peer: Peer) -> None:
        peer.hello()
        miss(peer)
        request_id, params = peer.request("begin_publication")
        assert isinstance(params, wire.BeginParams)
        assert params.wait_seconds == 1.5
        peer.send(wire.encode_error(request_id, busy))

    with ScriptedAgent(socket_path, play), store(socket_path) as agent:
        late = agent.get_or_build(Producer(), timeout=1.5)
    assert (late.status, late.failure) == (StoreStatus.TIMEOUT, busy)
