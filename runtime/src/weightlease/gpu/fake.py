"""A GPU without a GPU: memfds for allocations, this process's address space for the device's.

For tests and dry runs: everything but CUDA itself runs on it, over real descriptors, sockets and
processes. Tensors are the CPU's. `live` counts what was made and not given back, `fail` makes the
next call of a name answer an error.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import Counter
from typing import TYPE_CHECKING

from weightlease.gpu.errors import DeviceError

if TYPE_CHECKING:
    import torch

GRANULARITY = 64 * 1024
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class FakeDevice:
    """A device of memfds; handles are descriptors."""

    granularity = GRANULARITY

    def __init__(self, uuid: str = "GPU-00000000-0000-0000-0000-000000000000") -> None:
        self.uuid = uuid
        self.live: Counter[str] = Counter()
        self.calls: list[str] = []
        self.fail: dict[str, str] = {}

    @property
    def torch_device(self) -> torch.device:
        """The CPU."""
        import torch

        return torch.device("cpu")

    def create(self, nbytes: int) -> int:
        self._call("create")
        fd = os.memfd_create("fake-gpu", os.MFD_CLOEXEC)
        os.ftruncate(fd, nbytes)
        self.live["handles"] += 1
        return fd

    def export(self, handle: int) -> int:
        self._call("export")
        return os.dup(handle)

    def import_descriptor(self, fd: int, nbytes: int) -> int:
        self._call("import_descriptor")
        if os.fstat(fd).st_size != nbytes:
            raise DeviceError(
                "import_descriptor", "INVALID_VALUE", "the allocation has another size"
            )
        self.live["handles"] += 1
        return os.dup(fd)

    def release(self, handle: int) -> None:
        self._call("release")
        os.close(handle)
        self.live["handles"] -= 1

    def reserve(self, nbytes: int) -> int:
        self._call("reserve")
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        address = self._mmap(0, nbytes, 0, flags, -1)
        self.live["reserved_bytes"] += nbytes
        return address

    def map(self, address: int, handle: int, nbytes: int) -> None:
        self._call("map")
        self._mmap(address, nbytes, 0, mmap.MAP_SHARED | _MAP_FIXED, handle)
        self.live["mapped_bytes"] += nbytes

    def protect(self, address: int, nbytes: int, *, writable: bool) -> None:
        self._call("protect")
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        if _libc.mprotect(address, nbytes, access):
            raise DeviceError(
                "protect", os.strerror(ctypes.get_errno()), "see the call's arguments"
            )

    def unmap(self, address: int, nbytes: int) -> None:
        self._call("unmap")
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED
        self._mmap(address, nbytes, 0, flags, -1)
        self.live["mapped_bytes"] -= nbytes

    def free(self, address: int, nbytes: int) -> None:
        self._call("free")
        _libc.munmap(address, nbytes)
        self.live["reserved_bytes"] -= nbytes

    def synchronize(self) -> None:
        self._call("synchronize")

    def tensor(self, address: int, nbytes: int, owner: object) -> torch.Tensor:
        import torch

        memory = (ctypes.c_ubyte * nbytes).from_address(address)
        memory.owner = owner  # type: ignore[attr-defined]  # torch holds the array, the array this
        return torch.frombuffer(memory, dtype=torch.uint8)

    def leaked(self) -> dict[str, int]:
        """What is not given back yet."""
        return {name: count for name, count in self.live.items() if count}

    def _call(self, name: str) -> None:
        self.calls.append(name)
        result = self.fail.pop(name, "")
        if result:
            raise DeviceError(name, result, "a planted failure")

    def _mmap(self, address: int, nbytes: int, access: int, flags: int, fd: int) -> int:
        found = _libc.mmap(address, nbytes, access, flags, fd, 0)
        if found == _FAILED or found is None:
            raise DeviceError("mmap", os.strerror(ctypes.get_errno()), "see the call's arguments")
        return int(found)
