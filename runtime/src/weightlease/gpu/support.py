"""What is not shared, found before anything is: each feature by a stable name, none passed over.

Each check reads what the feature leaves behind on the module or the process; what cannot be seen
from here (a captured graph or a raw pointer that somebody saved) is in the documentation.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from weightlease.gpu.errors import UnsupportedError
from weightlease.gpu.registered import Registered

_PARALLEL = ("FullyShardedDataParallel", "DistributedDataParallel", "DataParallel", "FSDPModule")
# what each feature leaves in an instance's own table, if its value is one
_ATTRIBUTES = {
    "_compiled_call_impl": "compiled",  # module.compile(); torch.compile(module) wraps
    "_hf_hook": "offload",
    "_diffusers_hook": "offload",
    "hf_quantizer": "quantization",
    "peft_config": "lora",
    "_hf_peft_config_loaded": "lora",
}
_ATTRIBUTE_NAMES = frozenset(_ATTRIBUTES)
_CHILD_NAMES = frozenset({"lora_A", "lora_embedding_A"})
_WAY_OUT = {
    "compiled": "compiled modules are not shared; compile in the consumer",
    "script": "script modules are not shared; use the Python module",
    "parallel": "FSDP and other parallel wrappers are not shared; unwrap first",
    "offload": "offload hooks move weights; load without offload",
    "quantization": "quantised weights are not shared; load them unquantised",
    "lora": "adapters are not shared; merge into a copy, or load without LoRA",
    "lazy": "lazy modules have no layout yet; run them once first",
}


def require_module(model: object) -> None:
    """It is a module at all.

    Raises:
        UnsupportedError: it is not.

    """
    if not isinstance(model, nn.Module):
        raise UnsupportedError("not_a_module", f"{type(model).__name__} is no torch.nn.Module")


def require_supported_modules(modules: Iterable[tuple[str, nn.Module]]) -> None:
    """No module, each with its path, has a feature that is not shared; for both sides.

    Raises:
        UnsupportedError: the first that one has.

    """
    classes: dict[type, str] = {}
    for path, module in modules:
        kind = type(module)
        if kind not in classes:
            classes[kind] = _feature_of_class(kind)
        feature = classes[kind] or _feature_of_instance(module)
        if feature:
            raise UnsupportedError(feature, f"{path or kind.__name__}: {_WAY_OUT[feature]}")


def _feature_of_class(kind: type) -> str:
    if kind.__name__ == "OptimizedModule":
        return "compiled"
    if issubclass(kind, torch.jit.ScriptModule):
        return "script"
    if any(base.__name__ in _PARALLEL for base in kind.__mro__):
        return "parallel"
    return "lazy" if kind.__name__.startswith("Lazy") and _is_lazy(kind) else ""


def _is_lazy(kind: type) -> bool:
    # Once it has run, a lazy module is of its plain class.
    return issubclass(kind, nn.modules.lazy.LazyModuleMixin)


def _feature_of_instance(module: nn.Module) -> str:
    own = module.__dict__
    if not _ATTRIBUTE_NAMES.isdisjoint(own):
        for name in own.keys() & _ATTRIBUTES.keys():
            if own[name]:
                return _ATTRIBUTES[name]
    if not _CHILD_NAMES.isdisjoint(own["_modules"]):
        return "lora"
    if "config" in own or hasattr(type(module), "config"):
        configuration = getattr(module, "config", None)
        if getattr(configuration, "quantization_config", None) is not None:
            return "quantization"
    return ""


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
