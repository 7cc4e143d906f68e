"""Typed views of leased bytes: torch tensors and numpy arrays over read-only memory, not copied.

safetensors dtypes that a framework lacks come as raw bytes: torch gets flat uint8 for what it does
not know (`F4`, `F6_*`, newer ones), numpy gets uint16 for `BF16` and uint8 for the eight-bit
floats, in the tensor's shape.
"""

from __future__ import annotations

import importlib
import math
import threading
import warnings
from typing import TYPE_CHECKING, Any

from weightlease.errors import FailureCode, SafetensorsFormatError, Stage, WeightLeaseError

if TYPE_CHECKING:
    import numpy as np
    import torch

_TORCH_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
_NUMPY_NAMES = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "U64": "<u8",
    "I64": "<i8",
    "F16": "<f2",
    "BF16": "<u2",
    "F32": "<f4",
    "F64": "<f8",
    "C64": "<c8",
    "F8_E4M3": "u1",
    "F8_E5M2": "u1",
    "F8_E4M3FNUZ": "u1",
    "F8_E5M2FNUZ": "u1",
    "F8_E8M0": "u1",
}
_warning_guard = threading.Lock()
_warned_once = False


def torch_dtype(name: str) -> torch.dtype | None:
    """The torch dtype of safetensors `name`, or None where this torch has none."""
    _require("torch", "lease.tensors()")
    import torch

    found = getattr(torch, _TORCH_NAMES.get(name, ""), None)
    return found if isinstance(found, torch.dtype) else None


def torch_view(data: memoryview, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor over `data`, which must be aligned for `dtype`; the tensor holds it."""
    _require("torch", "lease.tensors()")
    import torch

    known = torch_dtype(dtype)
    if known is None:
        known, shape = torch.uint8, (data.nbytes,)
    _require_size(data, known.itemsize, dtype, shape)
    if data.nbytes == 0:
        return torch.empty(shape, dtype=known)
    return _frombuffer(data, known).view(shape)


def numpy_view(data: memoryview, dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """A read-only array over `data`, which must be aligned for `dtype`; the array holds it."""
    _require("numpy", "lease.numpy()")
    import numpy as np

    name = _NUMPY_NAMES.get(dtype)
    if name is None:
        name, shape = "u1", (data.nbytes,)
    known = np.dtype(name)
    _require_size(data, known.itemsize, dtype, shape)
    array: np.ndarray[Any, Any] = np.frombuffer(data, dtype=known).reshape(shape)
    array.flags.writeable = False
    return array


def item_size(dtype: str) -> int:
    """Alignment that a typed view of safetensors `dtype` needs, in bytes; 1 for raw bytes."""
    name = _NUMPY_NAMES.get(dtype, "u1")
    return 1 if name == "?" else int(name[-1])


def _require_size(data: memoryview, item: int, dtype: str, shape: tuple[int, ...]) -> None:
    if math.prod(shape) * item != data.nbytes:
        raise SafetensorsFormatError(
            "shape_differs", f"{data.nbytes} bytes do not hold a {dtype} tensor of shape {shape}"
        )


def _frombuffer(data: memoryview, dtype: torch.dtype) -> torch.Tensor:
    # torch warns that it cannot mark a read-only buffer's tensor; PROT_READ does that for it. The
    # warning comes once per process unless asked for always, so the global filters are touched
    # once. A buffer that may be written brings no warning and so does not use that once up.
    global _warned_once  # noqa: PLW0603 - mirrors torch's own once-flag
    import torch

    always = torch.is_warn_always_enabled()
    if not data.readonly or (_warned_once and not always):
        return torch.frombuffer(data, dtype=dtype)
    with _warning_guard, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
        tensor = torch.frombuffer(data, dtype=dtype)
        # A warning that always comes does not count as the one that comes once.
        _warned_once = _warned_once or not always
        return tensor


def _require(package: str, call: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise WeightLeaseError.of(
            Stage.CONFIGURATION,
            FailureCode.UNSUPPORTED,
            f"{call} needs {package}; install weightlease[torch], or read lease.buffer(name)",
        ) from error
