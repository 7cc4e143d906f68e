"""NVIDIA's virtual memory management through cuda-bindings' driver API, which only this calls.

    cuMemCreate (on the device, for POSIX descriptors) ─► cuMemExportToShareableHandle
    cuMemAddressReserve ─► cuMemMap ─► cuMemSetAccess            cuMemUnmap ─► cuMemAddressFree
    cuMemImportFromShareableHandle                               cuMemRelease

A mapping made read-only turns a stray write into an illegal access of the process that wrote. The
descriptor itself carries no access mode: whoever holds it may import it writable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightlease.gpu.errors import DeviceError, UnsupportedError

if TYPE_CHECKING:
    import torch

_ADVICE = {
    "CUDA_ERROR_OUT_OF_MEMORY": "free GPU memory, evict a resident set, or choose another GPU",
    "CUDA_ERROR_NOT_SUPPORTED": "the allocation has another size, or this GPU or driver cannot "
    "share such memory (MIG, vGPU, WSL)",
    "CUDA_ERROR_NOT_PERMITTED": "the container denies it; check the driver's device files",
    "CUDA_ERROR_INVALID_VALUE": "the descriptor is no allocation of that size; attach again",
    "CUDA_ERROR_INVALID_HANDLE": "the descriptor is no exported allocation; attach again",
    "CUDA_ERROR_INVALID_DEVICE": "the allocation is another GPU's; compare the UUIDs",
    "CUDA_ERROR_OPERATING_SYSTEM": "the kernel refused the descriptor; check the limit on files",
    "CUDA_ERROR_NOT_INITIALIZED": "initialise CUDA first, and never fork after that",
    "CUDA_ERROR_INITIALIZATION_ERROR": "CUDA cannot start in a forked child; spawn instead",
    "CUDA_ERROR_NO_DEVICE": "no GPU is visible; check the runtime class and the driver",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "a kernel wrote to read-only weights, or past them; restart",
    "CUDA_ERROR_UNKNOWN": "it may be no exported allocation; attach again, then see the driver",
    "CUDA_ERROR_DEINITIALIZED": "the driver is shutting down with the process",
}
_OTHERWISE = "see the CUDA driver API's reference for this result"


class CudaDevice:
    """One visible GPU, by torch's ordinal; its primary context is made on construction.

    Raises:
        UnsupportedError: torch or cuda-bindings are missing.
        DeviceError: there is no such GPU, or no driver.

    """

    def __init__(self, device: torch.device | str = "cuda") -> None:
        import torch

        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise UnsupportedError(
                "cuda_bindings", "cuda-bindings is missing; install weightlease[gpu]"
            ) from error
        found = torch.device(device)
        if found.type != "cuda":
            raise UnsupportedError("device", f"{found} is no CUDA device")
        try:
            index: int | None = found.index
            ordinal = torch.cuda.current_device() if index is None else index
            torch.empty(1, device=f"cuda:{ordinal}")
        except (RuntimeError, AssertionError) as error:
            raise DeviceError(
                "torch.cuda", str(error).splitlines()[0], _ADVICE["CUDA_ERROR_NO_DEVICE"]
            ) from error
        self._driver: Any = driver
        self._torch_device = torch.device("cuda", ordinal)
        self._ordinal = self._call("cuDeviceGet", ordinal)
        raw = bytes(self._call("cuDeviceGetUuid", self._ordinal).bytes).hex()
        parts = (raw[:8], raw[8:12], raw[12:16], raw[16:20], raw[20:])
        self._uuid = f"GPU-{'-'.join(parts)}"
        self._properties = self._describe()
        flag = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self._granularity = int(self._call("cuMemGetAllocationGranularity", self._properties, flag))

    @property
    def uuid(self) -> str:
        return self._uuid

    @property
    def granularity(self) -> int:
        return self._granularity

    @property
    def torch_device(self) -> torch.device:
        return self._torch_device

    def create(self, nbytes: int) -> Any:
        return self._call("cuMemCreate", nbytes, self._properties, 0)

    def export(self, handle: Any) -> int:
        return int(self._call("cuMemExportToShareableHandle", handle, self._descriptor_type(), 0))

    def import_descriptor(self, fd: int, nbytes: int) -> Any:  # noqa: ARG002 - map checks it
        return self._call("cuMemImportFromShareableHandle", fd, self._descriptor_type())

    def release(self, handle: Any) -> None:
        self._call("cuMemRelease", handle)

    def reserve(self, nbytes: int) -> int:
        return int(self._call("cuMemAddressReserve", nbytes, 0, 0, 0))

    def map(self, address: int, handle: Any, nbytes: int) -> None:
        self._call("cuMemMap", address, nbytes, 0, handle, 0)

    def protect(self, address: int, nbytes: int, *, writable: bool) -> None:
        flags = self._driver.CUmemAccess_flags
        access = self._driver.CUmemAccessDesc()
        access.location = self._location()
        access.flags = (
            flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            if writable
            else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        )
        self._call("cuMemSetAccess", address, nbytes, [access], 1)

    def unmap(self, address: int, nbytes: int) -> None:
        self._call("cuMemUnmap", address, nbytes)

    def free(self, address: int, nbytes: int) -> None:
        self._call("cuMemAddressFree", address, nbytes)

    def synchronize(self) -> None:
        import torch

        try:
            torch.cuda.synchronize(self._torch_device)
        except RuntimeError as error:
            text = str(error).splitlines()[0]
            illegal = "illegal memory access" in text
            advice = _ADVICE["CUDA_ERROR_ILLEGAL_ADDRESS"] if illegal else _OTHERWISE
            raise DeviceError("synchronize", text, advice) from error

    def tensor(self, address: int, nbytes: int, owner: object) -> torch.Tensor:
        import torch

        return torch.as_tensor(_Memory(address, nbytes, owner), device=self._torch_device)

    def _descriptor_type(self) -> Any:
        kinds = self._driver.CUmemAllocationHandleType
        return kinds.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

    def _location(self) -> Any:
        location = self._driver.CUmemLocation()
        location.type = self._driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        location.id = int(self._ordinal)
        return location

    def _describe(self) -> Any:
        properties = self._driver.CUmemAllocationProp()
        properties.type = self._driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location = self._location()
        properties.requestedHandleTypes = self._descriptor_type()
        return properties

    def _call(self, name: str, *arguments: Any) -> Any:
        result, *values = getattr(self._driver, name)(*arguments)
        if result != self._driver.CUresult.CUDA_SUCCESS:
            code = str(getattr(result, "name", result))
            raise DeviceError(name, code, _ADVICE.get(code, _OTHERWISE))
        return values[0] if values else None


class _Memory:
    """An address as torch takes it; torch keeps this object, and this object the owner."""

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self._owner = owner
        # torch knows no read-only tensors: that the memory is one is the mapping's to enforce.
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }
