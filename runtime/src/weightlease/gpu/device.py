"""What the arena needs of a device: virtual memory calls, and tensors over an address.

Two devices implement it: `cuda_vmm.CudaDevice` on the driver's virtual memory management, and
`fake.FakeDevice` on memfds, whose "GPU memory" behaves alike: an allocation lives while any
descriptor or mapping of it does, and a write through a read-only mapping ends the writer alone.

    create ─► handle ─ export ─► descriptor ══► import_descriptor ─► handle
    reserve ─► address ─ map(handle) ─ protect ─► tensor        unmap ─ free
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Device(Protocol):
    """One GPU. Sizes and addresses in bytes; every call raises DeviceError when it fails."""

    @property
    def uuid(self) -> str:
        """The physical GPU, whatever CUDA_VISIBLE_DEVICES calls it."""

    @property
    def granularity(self) -> int:
        """Allocations and mappings are multiples of this."""

    @property
    def torch_device(self) -> torch.device:
        """Where tensors of this device live for torch."""

    def create(self, nbytes: int) -> Any:
        """Allocate; the handle keeps the memory until it is released."""

    def export(self, handle: Any) -> int:
        """A descriptor, the caller's to close, that keeps the memory as a handle does."""

    def import_descriptor(self, fd: int, nbytes: int) -> Any:
        """A handle on another process's allocation; the caller keeps its descriptor."""

    def release(self, handle: Any) -> None:
        """Give a handle up; mappings keep the memory."""

    def reserve(self, nbytes: int) -> int:
        """A range of addresses without memory."""

    def map(self, address: int, handle: Any, nbytes: int) -> None:
        """Put memory behind part of a reserved range; not accessible before `protect`."""

    def protect(self, address: int, nbytes: int, *, writable: bool) -> None:
        """Allow this device to read, or to read and write, a mapped range."""

    def unmap(self, address: int, nbytes: int) -> None:
        """Take the memory of one `map` away again."""

    def free(self, address: int, nbytes: int) -> None:
        """Give a reserved range up; nothing may be mapped in it."""

    def synchronize(self) -> None:
        """Wait until the device has done all work of this process."""

    def tensor(self, address: int, nbytes: int, owner: object) -> torch.Tensor:
        """Flat uint8 over mapped memory; its storage holds `owner` until the last view goes."""
