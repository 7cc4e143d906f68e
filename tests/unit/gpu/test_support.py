"""Everything the document lists as unsupported is refused by name, before anything is shared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from donors import RunningDonor, Small, small
from weightlease.gpu.errors import UnsupportedError
from weightlease.gpu.registered import registry
from weightlease.gpu.support import (
    require_no_expandable_segments,
    require_no_mig,
    require_supported_modules,
)

Donate = Callable[..., RunningDonor]


class Subclass(torch.Tensor):
    pass


class DTensor(torch.Tensor):
    pass


def training(model: Small) -> None:
    model.inner.train()


def gradient(model: Small) -> None:
    model.inner.weight.grad = torch.zeros(5, 7)


def half_on_meta(model: Small) -> None:
    model.inner.to("meta")


def compiled_in_place(model: Small) -> None:
    model.inner.compile(backend="eager")


def sharded(model: Small) -> None:
    model.inner.weight = nn.Parameter(torch.zeros(5, 7).as_subclass(DTensor))


def subclassed(model: Small) -> None:
    model.inner.weight = nn.Parameter(torch.zeros(5, 7).as_subclass(Subclass))


def sparse(model: Small) -> None:
    model.steps = torch.arange(3).to_sparse()


def conjugated(model: Small) -> None:
    model.steps = torch.zeros(3, dtype=torch.complex64).conj()


def quantised_tensor(model: Small) -> None:
    model.steps = torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8)


def quantised_by_config(model: Small) -> None:
    class Config:
        quantization_config: ClassVar[dict[str, str]] = {"quant_method": "fp8"}

    model.config = Config()  # type: ignore[assignment]


def quantised_by_transformers(model: Small) -> None:
    model.hf_quantizer = object()  # type: ignore[assignment]


def offloaded(model: Small) -> None:
    model.inner._hf_hook = object()  # type: ignore[assignment]


def group_offloaded(model: Small) -> None:
    model.inner._diffusers_hook = object()  # type: ignore[assignment]


def adapted(model: Small) -> None:
    model.inner.lora_A = nn.ModuleDict()


def adapted_by_peft(model: Small) -> None:
    model.peft_config = {"default": object()}  # type: ignore[assignment]


def adapted_by_diffusers(model: Small) -> None:
    model._hf_peft_config_loaded = True  # type: ignore[assignment]


def lazy(model: Small) -> None:
    model.inner = nn.LazyLinear(5)


def wrapped_in_parallel(model: Small) -> None:
    class FullyShardedDataParallel(nn.Module):
        pass

    model.wrapper = FullyShardedDataParallel()


CHANGES: dict[Callable[[Small], None], str] = {
    training: "training",
    gradient: "training",
    half_on_meta: "not_loaded",
    compiled_in_place: "compiled",
    sharded: "dtensor",
    subclassed: "tensor_subclass",
    sparse: "not_strided",
    conjugated: "lazy_view",
    quantised_tensor: "quantization",
    quantised_by_config: "quantization",
    quantised_by_transformers: "quantization",
    offloaded: "offload",
    group_offloaded: "offload",
    adapted: "lora",
    adapted_by_peft: "lora",
    adapted_by_diffusers: "lora",
    lazy: "lazy",
    wrapped_in_parallel: "parallel",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_a_donor_refuses_what_is_not_shared(
    donate: Donate, change: Callable[[Small], None]
) -> None:
    model = small()
    change(model)
    donor = donate(model)
    assert isinstance(donor.error, UnsupportedError), donor.error
    assert donor.error.feature == CHANGES[change]
    assert not donor.place.exists()


@pytest.mark.parametrize(
    "change",
    [compiled_in_place, offloaded, adapted, quantised_by_config, wrapped_in_parallel, lazy],
    ids=lambda change: change.__name__,
)
def test_a_consumer_refuses_it_too(donate: Donate, change: Callable[[Small], None]) -> None:
    def factory() -> nn.Module:
        model = Small()
        change(model)
        return model

    with pytest.raises(UnsupportedError) as raised, donate().client().load_model(factory):
        pass
    assert raised.value.feature == CHANGES[change]


def test_a_compiled_wrapper_is_refused() -> None:
    wrapped: Any = torch.compile(small(), backend="eager")
    with pytest.raises(UnsupportedError) as raised:
        require_supported_modules(wrapped.named_modules())
    assert raised.value.feature == "compiled"


def test_a_script_module_is_refused() -> None:
    class Script(torch.jit.ScriptModule):
        pass

    with pytest.raises(UnsupportedError) as raised:
        require_supported_modules([("", Script())])
    assert raised.value.feature == "script"


def test_what_is_no_module_is_refused(donate: Donate) -> None:
    error = donate({"weight": torch.zeros(3)}).error
    assert isinstance(error, UnsupportedError)
    assert error.feature == "not_a_module"


def test_registered_tensors_on_a_cpu_are_refused_where_a_gpu_is_meant(donate: Donate) -> None:
    error = donate(device=None).error
    assert isinstance(error, UnsupportedError)
    assert error.feature == "cpu_tensor"


def test_plain_parameters_and_buffers_pass() -> None:
    require_supported_modules(small().named_modules())
    assert registry(small()).entries


def test_an_empty_peft_configuration_is_none() -> None:
    model = small()
    model.peft_config = {}  # type: ignore[assignment]
    require_supported_modules(model.named_modules())


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_expandable_segments_are_refused_by_either_variable(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    require_no_expandable_segments()
    monkeypatch.setenv(name, "max_split_size_mb:64, expandable_segments: True")
    with pytest.raises(UnsupportedError) as raised:
        require_no_expandable_segments()
    assert raised.value.feature == "expandable_segments"


def test_expandable_segments_that_exist_already_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: [{"is_expandable": True}])
    with pytest.raises(UnsupportedError, match="holds some already"):
        require_no_expandable_segments()


def test_a_mig_instance_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    require_no_mig(torch.device("cpu"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-7a3f")
    with pytest.raises(UnsupportedError) as raised:
        require_no_mig(torch.device("cpu"))
    assert raised.value.feature == "mig"
