"""Storages lent between processes without CUDA: live memory behind /proc/<pid>/fd."""

from __future__ import annotations

import os
from typing import Any

import torch

from weightlease.gpu.cuda_ipc import SharedStorage


class FakeIpc:
    """Moves a storage into a shared file once; every export is the path of its descriptor."""

    def __init__(self) -> None:
        self.exports: list[SharedStorage] = []
        self.opened: list[SharedStorage] = []

    def share(self, storage: torch.UntypedStorage) -> SharedStorage:
        sharing: Any = storage
        fd, nbytes = sharing._share_fd_cpu_()
        handle = f"/proc/{os.getpid()}/fd/{fd}".encode().hex()
        counter = str(len(self.exports)).encode().hex()
        shared = SharedStorage(handle, nbytes, 0, counter, 0, "", event_sync=False, blocks=())
        self.exports.append(shared)
        return shared

    def open(self, shared: SharedStorage, device: torch.device) -> torch.UntypedStorage:
        assert all(shared.counter != other.counter for other in self.opened)
        self.opened.append(shared)
        kind: Any = torch.UntypedStorage
        fd = os.open(bytes.fromhex(shared.handle).decode(), os.O_RDWR | os.O_CLOEXEC)
        try:
            opened: torch.UntypedStorage = kind._new_shared_fd_cpu(fd, shared.nbytes)
        finally:
            os.close(fd)
        return opened
