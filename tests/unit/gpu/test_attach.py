"""A consumer's model runs on the donor's weights and gives them back."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from descriptors import open_descriptors
from donors import KEY, RunningDonor, Small, small
from weightlease.gpu import WeightCacheClient, WeightCacheKey
from weightlease.gpu.errors import (
    DeviceError,
    DeviceMismatchError,
    KeyMismatchError,
    LayoutMismatchError,
    LiveTensorsError,
    UnsupportedError,
)
from weightlease.gpu.fake import FakeDevice

Donate = Callable[..., RunningDonor]
TOKENS = torch.tensor([1, 5, 12])


def expected() -> torch.Tensor:
    result: torch.Tensor = small()(TOKENS)
    return result.detach()


def test_an_attached_model_computes_what_the_donors_does(donate: Donate) -> None:
    with torch.no_grad(), donate().client().load_model(Small) as attached:
        assert torch.equal(attached.model(TOKENS), expected())


def test_the_donors_own_model_still_computes_after_its_weights_moved(donate: Donate) -> None:
    donor = donate()
    assert torch.equal(donor.model(TOKENS), expected())


def test_the_factory_runs_on_meta_and_reads_no_weights(donate: Donate) -> None:
    seen: list[torch.device] = []

    def factory() -> nn.Module:
        model = Small()
        seen.extend(tensor.device for tensor in (*model.parameters(), *model.buffers()))
        return model

    with donate().client().load_model(factory):
        assert {device.type for device in seen} == {"meta"}


def test_every_parameter_and_buffer_is_mapped_and_none_is_copied(donate: Donate) -> None:
    device = FakeDevice()
    with donate().client(device=device).load_model(Small) as attached:
        model = attached.model
        tensors = [*model.parameters(), *model.buffers()]
        assert len(tensors) == 5
        assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1
        assert all(tensor.data_ptr() % 256 == 0 for tensor in tensors)
        assert device.live["mapped_bytes"] == attached.layout.nbytes
        del tensors


def test_non_persistent_buffers_are_included(donate: Donate) -> None:
    with donate().client().load_model(Small) as attached:
        assert float(attached.model.scale) == 1.5


def test_tied_parameters_stay_one_object(donate: Donate) -> None:
    with donate().client().load_model(Small) as attached:
        assert attached.model.head.weight is attached.model.embed.weight


def test_overlapping_buffers_share_their_bytes_again(donate: Donate) -> None:
    class Overlapping(nn.Module):
        whole: torch.Tensor
        part: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            whole = torch.arange(10.0)
            self.register_buffer("whole", whole)
            self.register_buffer("part", whole[4:8])

    with donate(Overlapping().eval()).client().load_model(Overlapping) as attached:
        whole, part = attached.model.whole, attached.model.part
        assert part.tolist() == [4, 5, 6, 7]
        assert part.data_ptr() == whole.data_ptr() + 16
        del whole, part


def test_strides_are_kept(donate: Donate) -> None:
    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(6.0).reshape(2, 3).t())

    with donate(Transposed().eval()).client().load_model(Transposed) as attached:
        assert attached.model.weight.stride() == (1, 3)
        assert attached.model.weight.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_the_model_is_put_into_eval_mode(donate: Donate) -> None:
    with donate().client().load_model(Small) as attached:
        assert not any(module.training for module in attached.model.modules())


def test_an_edited_method_body_still_attaches(donate: Donate) -> None:
    donor = donate()
    before = Small.forward
    try:
        Small.forward = lambda self, tokens: self.embed(tokens) * 2  # type: ignore[method-assign]
        with torch.no_grad(), donor.client().load_model(Small) as attached:
            found = attached.model(TOKENS)
    finally:
        Small.forward = before  # type: ignore[method-assign]
    assert torch.equal(found, small().embed(TOKENS) * 2)


def test_on_exit_the_model_is_on_meta_again_and_everything_is_given_back(donate: Donate) -> None:
    device = FakeDevice()
    with donate().client(device=device).load_model(Small) as attached:
        model = attached.model
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"meta"}
    assert model.head.weight is model.embed.weight
    assert device.leaked() == {}
    assert "synchronize" in device.calls


def test_on_exit_the_device_is_waited_for_before_anything_is_unmapped(donate: Donate) -> None:
    device = FakeDevice()
    with donate().client(device=device).load_model(Small):
        device.calls.clear()
    assert device.calls[0] == "synchronize"
    assert device.calls.index("unmap") > 0


def test_a_body_that_fails_gives_everything_back_and_keeps_its_error(donate: Donate) -> None:
    device = FakeDevice()
    with pytest.raises(ZeroDivisionError), donate().client(device=device).load_model(Small):
        _ = 1 / 0
    gc.collect()
    assert device.leaked() == {}


def test_a_tensor_that_lives_outside_is_named_and_stays_valid(donate: Donate) -> None:
    donor, device = donate(), FakeDevice()
    kept: list[torch.Tensor] = []
    with (
        pytest.raises(LiveTensorsError, match=r"inner\.weight") as raised,
        donor.client(device=device).load_model(Small) as attached,
    ):
        kept.append(attached.model.inner.weight)
    assert raised.value.names == ("inner.weight",)
    assert torch.equal(kept[0], small().inner.weight)
    assert device.live["mapped_bytes"] > 0
    del raised, attached
    kept.clear()
    gc.collect()
    assert device.leaked() == {}


def test_a_view_that_was_made_of_a_weight_is_named_by_its_weight(donate: Donate) -> None:
    kept: list[torch.Tensor] = []
    with (
        pytest.raises(LiveTensorsError) as raised,
        donate().client().load_model(Small) as attached,
    ):
        kept.append(attached.model.inner.weight.detach()[2:])
    assert raised.value.names == ("inner.weight",)
    assert torch.equal(kept[0], small().inner.weight[2:])
    del raised, attached
    kept.clear()


def test_a_tensor_inside_an_unreachable_cycle_does_not_count(donate: Donate) -> None:
    device = FakeDevice()
    with donate().client(device=device).load_model(Small) as attached:
        loop: list[Any] = [attached.model.inner.weight]
        loop.append(loop)
        del loop
    assert device.leaked() == {}


def test_the_same_client_attaches_again_and_again_without_leaking(donate: Donate) -> None:
    device = FakeDevice()
    client = donate().client(device=device)
    with client.load_model(Small):
        pass
    before = len(open_descriptors())
    for _ in range(50):
        with client.load_model(Small):
            pass
    assert device.leaked() == {}
    # the donor's side of a connection closes a moment later
    assert len(open_descriptors()) <= before + 3


def test_two_consumers_hold_the_weights_at_once(donate: Donate) -> None:
    donor = donate()
    with (
        torch.no_grad(),
        donor.client().load_model(Small) as one,
        donor.client().load_model(Small) as other,
    ):
        assert torch.equal(one.model(TOKENS), other.model(TOKENS))


def test_another_layout_is_refused_before_any_binding_changes(donate: Donate) -> None:
    built: list[nn.Module] = []

    def factory() -> nn.Module:
        model = Small()
        model.inner = nn.Linear(7, 6)
        built.append(model)
        return model

    device = FakeDevice()
    with (
        pytest.raises(LayoutMismatchError) as raised,
        donate().client(device=device).load_model(factory),
    ):
        pass
    assert any("inner.weight: shape (6, 7) here" in line for line in raised.value.differences)
    assert all(tensor.is_meta for tensor in built[0].parameters())
    assert device.calls == []


def test_a_meta_tensor_that_nobody_registers_is_refused(donate: Donate) -> None:
    def factory() -> nn.Module:
        model = Small()
        model.inner.tables = {"cos": [torch.ones(3)]}  # type: ignore[assignment]
        return model

    with (
        pytest.raises(UnsupportedError, match=r"inner.tables\['cos'\]\[0\]"),
        donate().client().load_model(factory),
    ):
        pass


def test_a_constant_made_outside_the_meta_context_is_the_consumers_own(donate: Donate) -> None:
    constant = torch.ones(3)

    def factory() -> nn.Module:
        model = Small()
        model.constant = constant
        return model

    with donate().client().load_model(factory) as attached:
        assert attached.model.constant is constant


def test_a_factory_that_materialises_a_weight_is_refused(donate: Donate) -> None:
    def factory() -> nn.Module:
        model = Small()
        model.inner.bias = nn.Parameter(torch.zeros(5, device="cpu"))
        return model

    with (
        pytest.raises(UnsupportedError, match=r"inner\.bias"),
        donate().client().load_model(factory),
    ):
        pass


@pytest.mark.parametrize("field", WeightCacheKey.__struct_fields__)
def test_a_key_that_differs_in_one_field_is_refused_by_that_name(
    donate: Donate, field: str
) -> None:
    import msgspec

    other = msgspec.structs.replace(KEY, **{field: "another"})
    with pytest.raises(KeyMismatchError) as raised, donate().client(other).load_model(Small):
        pass
    assert raised.value.fields == (field,)


def test_another_gpu_is_refused_by_its_uuid(donate: Donate) -> None:
    elsewhere = FakeDevice("GPU-11111111-0000-0000-0000-000000000000")
    with pytest.raises(DeviceMismatchError), donate().client(device=elsewhere).load_model(Small):
        pass


def test_a_device_that_refuses_ends_the_attach_and_leaves_nothing(donate: Donate) -> None:
    donor, device = donate(), FakeDevice()
    device.fail["map"] = "CUDA_ERROR_OUT_OF_MEMORY"
    with pytest.raises(DeviceError), donor.client(device=device).load_model(Small):
        pass
    gc.collect()
    assert device.leaked() == {}
    report = donor.end()
    assert report is not None


def test_a_device_that_fails_while_it_is_waited_for_still_unbinds(donate: Donate) -> None:
    device = FakeDevice()
    attached = donate().client(device=device).attach(Small)
    device.fail["synchronize"] = "CUDA_ERROR_ILLEGAL_ADDRESS"
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS"):
        attached.detach()
    assert all(tensor.is_meta for tensor in attached.model.parameters())


def test_a_client_needs_a_socket_in_a_private_directory(tmp_path: Any) -> None:
    from weightlease.gpu.errors import PeerRefusedError

    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    client = WeightCacheClient(shared / "x.sock", KEY, FakeDevice())
    with pytest.raises(PeerRefusedError, match="0700"), client.load_model(Small):
        pass
