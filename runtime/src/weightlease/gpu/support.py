"""What is not shared, found before anything is: each feature by a stable name, none passed over.

Each check reads what the feature leaves behind on the module or the process; what cannot be seen
from here (a captured graph or a raw pointer that somebody saved) is in the documentation.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from weightlease.gpu.errors import UnsupportedError
from weightlease.gpu.registered import Registered

_PLAIN = (torch.Tensor, nn.Parameter)
_PARALLEL = ("FullyShardedDataParallel", "DistributedDataParallel", "DataParallel", "FSDPModule")
_HOOKS = ("_hf_hook", "_diffusers_hook")


def require_supported_module(model: object) -> nn.Module:
    """The module has no feature that is not shared; for both sides.

    Raises:
        UnsupportedError: the first that it has.

    """
    if not isinstance(model, nn.Module):
        raise UnsupportedError("not_a_module", f"{type(model).__name__} is no torch.nn.Module")
    for path, module in model.named_modules():
        for feature, (present, way_out) in _MODULE_FEATURES.items():
            if present(module):
                where = path or type(module).__name__
                raise UnsupportedError(feature, f"{where}: {way_out}")
    return model


def _is_compiled(module: nn.Module) -> bool:
    # module.compile() sets the second; torch.compile(module) wraps in the first
    name = type(module).__name__
    return name == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


def _is_parallel(module: nn.Module) -> bool:
    return any(kind.__name__ in _PARALLEL for kind in type(module).__mro__)


def _is_offloaded(module: nn.Module) -> bool:
    return any(getattr(module, hook, None) is not None for hook in _HOOKS)


def _is_quantized(module: nn.Module) -> bool:
    if getattr(module, "hf_quantizer", None) is not None:
        return True
    configuration = getattr(module, "config", None)
    return getattr(configuration, "quantization_config", None) is not None


def _has_adapter(module: nn.Module) -> bool:
    if getattr(module, "peft_config", None) or getattr(module, "_hf_peft_config_loaded", False):
        return True
    return any(hasattr(module, name) for name in ("lora_A", "lora_embedding_A"))


def _is_lazy(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params()


_MODULE_FEATURES: dict[str, tuple[Callable[[nn.Module], bool], str]] = {
    "compiled": (_is_compiled, "compiled modules are not shared; compile in the consumer"),
    "script": (
        lambda module: isinstance(module, torch.jit.ScriptModule),
        "script modules are not shared; use the Python module",
    ),
    "parallel": (_is_parallel, "FSDP and other parallel wrappers are not shared; unwrap first"),
    "offload": (_is_offloaded, "offload hooks move weights; load without offload"),
    "quantization": (_is_quantized, "quantised weights are not shared; load them unquantised"),
    "lora": (_has_adapter, "adapters are not shared; merge into a copy, or load without LoRA"),
    "lazy": (_is_lazy, "lazy modules have no layout yet; run them once first"),
}


def require_plain_tensors(entries: Iterable[Registered]) -> None:
    """Every registered tensor is native and strided; for both sides.

    Raises:
        UnsupportedError: the first that is not.

    """
    for entry in entries:
        tensor = entry.tensor
        kind = type(tensor)
        if kind not in _PLAIN:
            feature = "dtensor" if kind.__name__ == "DTensor" else "tensor_subclass"
            raise UnsupportedError(feature, f"{entry.name} is a {kind.__name__}, no plain tensor")
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
            raise UnsupportedError("not_strided", f"{entry.name} is not a native strided tensor")
        if tensor.is_conj() or tensor.is_neg():
            raise UnsupportedError("lazy_view", f"{entry.name} is a lazy conjugate or negation")


def require_idle_inference(
    model: nn.Module, entries: Iterable[Registered], device: torch.device
) -> None:
    """The donor's model is loaded, idle, for inference alone, and on one device.

    Raises:
        UnsupportedError: what it is instead.

    """
    training = next((path for path, module in model.named_modules() if module.training), None)
    if training is not None:
        raise UnsupportedError(
            "training", f"{training or 'the model'} is in training mode; call eval()"
        )
    for entry in entries:
        tensor = entry.tensor
        if tensor.is_meta:
            raise UnsupportedError("not_loaded", f"{entry.name} is on meta; load the model first")
        if tensor.device != device:
            feature = "cpu_tensor" if tensor.device.type == "cpu" else "several_devices"
            raise UnsupportedError(
                feature,
                f"{entry.name} is on {tensor.device}, not on {device}; move the whole model",
            )
        if tensor.grad is not None:
            raise UnsupportedError(
                "training", f"{entry.name} has a gradient; this is for inference"
            )
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise UnsupportedError("graph_capture", "a CUDA graph is being captured; finish it first")


def require_no_mig(device: torch.device) -> None:
    """The device is a whole GPU.

    Raises:
        UnsupportedError: it is a MIG instance.

    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    if "MIG" in visible or " MIG " in name:
        raise UnsupportedError("mig", f"{name or visible}: sharing is not proved on MIG instances")


def require_no_expandable_segments() -> None:
    """The allocator of torch holds no expandable segment, which legacy IPC cannot export.

    Raises:
        UnsupportedError: it is configured to, or has one already.

    """
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        if "expandable_segments:true" in os.environ.get(name, "").lower().replace(" ", ""):
            raise UnsupportedError("expandable_segments", f"{name} asks for them; unset it")
    cuda: Any = torch.cuda
    segments = cuda.memory_snapshot() if cuda.is_initialized() else []
    if any(segment.get("is_expandable") for segment in segments):
        raise UnsupportedError(
            "expandable_segments", "the allocator holds some already; use the vmm transport"
        )
