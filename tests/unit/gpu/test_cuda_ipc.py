"""Live tensors lent where they are: a fresh export for every consumer, nothing unpickled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import torch
from torch import nn

from donors import KEY, RunningDonor, Small, small
from fake_ipc import FakeIpc
from weight_processes import running
from weightlease.gpu import WeightCacheClient, WeightCacheKey, channel, client, lending
from weightlease.gpu.cuda_ipc import CudaIpc, SharedStorage, decode_storages, export_storages
from weightlease.gpu.errors import (
    DonorUnavailableError,
    GpuError,
    KeyMismatchError,
    LayoutError,
    LiveTensorsError,
)
from weightlease.gpu.fake import FakeDevice
from weightlease.gpu.layout import ModelLayout, place_blocks, used_bytes
from weightlease.gpu.registered import registry

Donate = Callable[..., RunningDonor]


def lend(donate: Donate, model: nn.Module | None = None) -> tuple[RunningDonor, FakeIpc]:
    ipc = FakeIpc()
    donor = donate(small() if model is None else model, transport="cuda-ipc", storage_transport=ipc)
    assert donor.error is None
    return donor, ipc


def consumer(donor: RunningDonor) -> WeightCacheClient:
    return donor.client(storage_transport=FakeIpc())


def test_a_consumer_sees_the_donors_live_tensors(donate: Donate) -> None:
    donor, _ = lend(donate)
    tokens = torch.tensor([1, 5, 12])
    with torch.no_grad(), consumer(donor).load_model(Small) as attached:
        assert torch.equal(attached.model(tokens), small()(tokens))
        assert attached.model.head.weight is attached.model.embed.weight


def test_the_donors_tensors_do_not_move(donate: Donate) -> None:
    model = small()
    model.share_memory()
    before = [tensor.data_ptr() for tensor in model.parameters()]
    donor, _ = lend(donate, model)
    with consumer(donor).load_model(Small):
        assert [tensor.data_ptr() for tensor in model.parameters()] == before


def test_slices_of_one_storage_are_exported_once_and_found_at_their_offsets(
    donate: Donate,
) -> None:
    model = small()
    flat = torch.arange(100.0)
    model.inner.bias.data = flat[7:12]
    model.inner.weight.data = flat[20:55].view(5, 7)
    donor, ipc = lend(donate, model)
    with consumer(donor).load_model(Small) as attached:
        assert attached.model.inner.bias.tolist() == [7, 8, 9, 10, 11]
        assert attached.model.inner.weight[0, 0] == 20
    assert len(ipc.exports) == 4


def test_every_consumer_gets_exports_of_its_own(donate: Donate) -> None:
    donor, ipc = lend(donate)
    for _ in range(3):
        with consumer(donor).load_model(Small):
            pass
    counters = [shared.counter for shared in ipc.exports]
    assert len(counters) == len(set(counters)) == 3 * 5


def test_one_process_may_hold_two_attachments_each_of_its_own_exports(donate: Donate) -> None:
    donor, ipc = lend(donate)
    client_ = consumer(donor)
    with client_.load_model(Small) as one, client_.load_model(Small) as other:
        assert torch.equal(one.model.inner.weight, other.model.inner.weight)
    # the donor itself opens none
    assert ipc.opened == []


class Pooled(FakeIpc):
    """Storages of a pool, which CUDA does not export: the driver's answer, as torch raises it."""

    def share(self, storage: torch.UntypedStorage) -> SharedStorage:
        return CudaIpc().share(cast(torch.UntypedStorage, self))

    def _share_cuda_(self) -> None:
        raise RuntimeError("CUDA error: invalid argument\nCompile with TORCH_USE_CUDA_DSA")


def test_memory_that_cannot_be_exported_is_named_to_who_asks_for_it(donate: Donate) -> None:
    donor = donate(transport="cuda-ipc", storage_transport=Pooled())
    with pytest.raises(GpuError, match=r"invalid argument.*use the vmm transport") as raised:
        consumer(donor).attach(Small)
    assert "Compile" not in str(raised.value)
    report = donor.end()
    assert report is not None
    assert (report.granted, report.refused) == (0, 1)


class Hollow(nn.Module):
    """A tensor without elements, a scalar and a weight."""

    nothing: torch.Tensor
    scalar: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(3.0))
        self.register_buffer("nothing", torch.zeros(0, 7))
        self.register_buffer("scalar", torch.tensor(2.5))


@pytest.mark.parametrize("transport", ["vmm", "cuda-ipc"])
def test_tensors_without_elements_or_dimensions_are_lent_too(
    donate: Donate, transport: str
) -> None:
    donor = donate(Hollow().eval(), transport=transport, storage_transport=FakeIpc())
    assert donor.error is None
    with consumer(donor).load_model(Hollow) as attached:
        assert attached.model.nothing.shape == (0, 7)
        assert float(attached.model.scalar) == 2.5
        assert attached.model.weight.tolist() == [0, 1, 2]
    assert donor.end() is not None


def test_a_donor_stops_lending_when_its_exports_are_used_up(
    donate: Donate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "MAX_EXPORTS", 11)
    donor, _ = lend(donate)
    for _ in range(2):
        with consumer(donor).load_model(Small):
            pass
    with pytest.raises(DonorUnavailableError, match="10 of 11 exports"):
        consumer(donor).attach(Small)


def pretend_another_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(version: int, key: WeightCacheKey, gpu: str, torch_version: str) -> channel.Ask:
        return channel.Ask(version, key, gpu, "0.0.1")

    monkeypatch.setattr(client, "Ask", ask)


def test_another_torch_is_refused_by_the_donor(
    donate: Donate, monkeypatch: pytest.MonkeyPatch
) -> None:
    donor, _ = lend(donate)
    pretend_another_torch(monkeypatch)
    with pytest.raises(KeyMismatchError, match="torch"):
        consumer(donor).attach(Small)


def test_another_torch_may_attach_to_an_arena(
    donate: Donate, monkeypatch: pytest.MonkeyPatch
) -> None:
    donor = donate()
    pretend_another_torch(monkeypatch)
    with donor.client().load_model(Small) as attached:
        assert torch.equal(attached.model.inner.weight, small().inner.weight)


def test_a_tensor_that_lives_outside_is_named_and_holds_the_donor(donate: Donate) -> None:
    donor, _ = lend(donate)
    kept: list[torch.Tensor] = []
    with (
        pytest.raises(LiveTensorsError) as raised,
        consumer(donor).load_model(Small) as attached,
    ):
        kept.append(attached.model.inner.bias.detach())
    assert raised.value.names == ("inner.bias",)
    assert torch.equal(kept[0], small().inner.bias)
    donor.ask_to_stop()
    assert donor.running
    from weightlease.gpu import attachment

    for calls in attachment._outlived:
        for call in calls:
            call()
    attachment._outlived.clear()


def test_a_dead_donor_is_an_error_for_the_next_attach_and_a_new_one_serves_again(
    donate: Donate, place: Path
) -> None:
    with running("cuda-ipc", place) as process:
        process.kill()
        process.wait()
    client_ = WeightCacheClient(place, KEY, FakeDevice(), storage_transport=FakeIpc())
    with pytest.raises(DonorUnavailableError):
        client_.attach(Small)
    lend(donate)
    with client_.load_model(Small):
        pass


def exported() -> tuple[ModelLayout, list[Any]]:
    found = registry(small())
    blocks = place_blocks([block.nbytes for block in found.layout.blocks])
    layout = msgspec.structs.replace(found.layout, blocks=blocks, nbytes=used_bytes(blocks))
    return layout, msgspec.json.decode(export_storages(FakeIpc(), found.spans))


def test_an_honest_export_is_accepted() -> None:
    layout, tree = exported()
    assert len(decode_storages(msgspec.json.encode(tree), layout)) == 5


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda tree: tree[0].update(handle="zz"), "hexadecimal"),
        (lambda tree: tree[0].update(handle="00" * 600), "exceeds"),
        (lambda tree: tree[0].update(nbytes=-1), "out of range"),
        (lambda tree: tree[0].update(nbytes=2**60), "out of range"),
        (lambda tree: tree[0].update(nbytes=1), "behind its allocation"),
        (lambda tree: tree[0].update(blocks=[[99, 0]]), "is none"),
        (lambda tree: tree[0].update(blocks=[[0, -8]]), "is none"),
        (lambda tree: tree[0].update(blocks=[[0, 1 << 30]]), "behind its allocation"),
        (lambda tree: tree[0].update(blocks=[[0, 0], [0, 0]]), "were exported"),
        (lambda tree: tree.pop(), "were exported"),
        (lambda tree: tree[0].update(code="os.system"), "malformed"),
    ],
)
def test_an_export_that_lies_is_refused(change: Callable[[Any], Any], says: str) -> None:
    layout, tree = exported()
    change(tree)
    with pytest.raises(LayoutError, match=says):
        decode_storages(msgspec.json.encode(tree), layout)
