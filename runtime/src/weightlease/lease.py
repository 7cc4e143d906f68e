"""A lease: read access to one artifact for as long as its holder keeps it.

The lease owns every descriptor that it was given: one per payload file, one per asset, and the
lock, whose shared flock *is* the lease. `close()` gives them back at once, except where views still
live: their mappings and the lock go with the last view, so a close never crashes a process that
computes (`close(strict=True)` names the views instead of closing).

A forked child shares the lock: the artifact stays leased until parent and child have both closed
their lease or ended. Closing in the child never ends the parent's. Descriptors are close-on-exec,
so a program that is executed holds nothing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NoReturn, Self, TypeVar

from weightlease.errors import (
    FailureCode,
    LiveViewsError,
    ManifestError,
    SafetensorsFormatError,
    Stage,
    WeightLeaseError,
)
from weightlease.identity import WeightArtifactIdentity
from weightlease.lease_manifest import LeasedManifest
from weightlease.lease_mapping import (
    LiveViews,
    LockOwner,
    PayloadFile,
    TensorLocation,
    require_regular_file,
)
from weightlease.manifest import Manifest, require_one_tree, require_payload_name
from weightlease.policy import Validation

if TYPE_CHECKING:
    import numpy as np
    import torch

ViewT = TypeVar("ViewT")
ResolutionSource = Literal["local_store", "agent"]


@dataclass(frozen=True)
class LeaseProvenance:
    """Where a lease comes from and how far its bytes were checked before it was given."""

    key: str
    artifact_content_sha256: str
    manifest_sha256: str
    domain_uuid: str
    publication_id: str
    storage_class: str
    validation: Validation
    resolution_source: ResolutionSource
    lease_id: str = ""


class WeightLease:
    """One artifact, leased read-only. Thread-safe; a context manager; cannot be pickled.

    `payload_fds` follow the manifest's files, `asset_fds` its assets (or are empty). The lease owns
    all of them and `lock_fd` from the call on, also when the constructor raises.
    """

    def __init__(
        self,
        manifest: Manifest | LeasedManifest,
        payload_fds: Sequence[int],
        asset_fds: Sequence[int],
        lock_fd: int,
        provenance: LeaseProvenance,
    ) -> None:
        self._guard = threading.RLock()
        self._fds = [*payload_fds, *asset_fds]
        self._owner: LockOwner | None = LockOwner(lock_fd)
        self.provenance = provenance
        self._manifest = (
            manifest if isinstance(manifest, LeasedManifest) else LeasedManifest(manifest)
        )
        self._views = LiveViews()
        self._copies: dict[str, memoryview] = {}
        self._payloads: dict[str, PayloadFile] = {}
        self._assets: dict[str, int] = {}
        try:
            self._adopt(payload_fds, asset_fds)
        except BaseException:
            self.close()
            raise
        _open_leases.add(self)

    # ---- reading ----

    @property
    def key(self) -> str:
        """The artifact's key."""
        return self.provenance.key

    @property
    def identity(self) -> WeightArtifactIdentity:
        """What exactly was leased."""
        return self._manifest.identity

    @property
    def manifest(self) -> Manifest:
        """What the artifact holds; decoded on first use where the lease came over a socket.

        Raises:
            ManifestError: the bytes that were leased are not a valid manifest.

        """
        with self._guard:
            return self._manifest.full()

    @property
    def closed(self) -> bool:
        """Whether `close` has been called; views may outlive it."""
        return self._owner is None

    @property
    def shared_bytes(self) -> int:
        """Size of all payload files, in bytes: what every holder on this host shares."""
        return sum(entry.size for entry in self._manifest.files)

    @property
    def copied_bytes(self) -> int:
        """Bytes of misaligned tensors that were copied into private, aligned memory."""
        return sum(copy.nbytes for copy in self._copies.values())

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor over shared, read-only memory; writing to it in place is a segmentation fault.

        Raises:
            KeyError: the artifact has no such tensor.
            WeightLeaseError: the lease is closed, a header lies, or torch is missing.

        """
        from weightlease.lease_tensors import torch_view

        def view(data: memoryview, at: TensorLocation) -> tuple[torch.Tensor, object]:
            return torch_view(data, at.dtype, at.shape), data

        return self._view(name, view)

    def array(self, name: str) -> np.ndarray:
        """One read-only array over shared memory; see `lease_tensors` for types numpy lacks.

        Raises:
            KeyError: the artifact has no such tensor.
            WeightLeaseError: the lease is closed, a header lies, or numpy is missing.

        """
        from weightlease.lease_tensors import numpy_view

        def view(data: memoryview, at: TensorLocation) -> tuple[np.ndarray, object]:
            array = numpy_view(data, at.dtype, at.shape)
            # Arrays derived from it hold its base, not the array itself.
            return array, array.base

        return self._view(name, view)

    def buffer(self, name: str) -> memoryview:
        """The bytes of one tensor as a flat, read-only memoryview, whatever their alignment.

        Raises:
            KeyError: the artifact has no such tensor.
            WeightLeaseError: the lease is closed, or a header lies.

        """
        with self._guard:
            data, _ = self._bytes(name)
            self._views.add(name, data)
            return data

    def names(self) -> tuple[str, ...]:
        """Names of every tensor, sorted."""
        with self._guard:
            return tuple(self._manifest.by_name())

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Every tensor by name, each made when it is asked for."""
        return _LazyViews(self, self.tensor)

    def numpy(self) -> Mapping[str, np.ndarray]:
        """Every tensor by name as a numpy array, each made when it is asked for."""
        return _LazyViews(self, self.array)

    def files(self) -> Mapping[str, str]:
        """A path per payload and asset that works in this process's children too.

        The path goes through /proc/<pid>/fd, so it needs no mount of the store and lives as long
        as the lease is open here. Resolving it further (`os.path.realpath`) leads nowhere in a
        container.
        """
        with self._guard:
            self._require_open()
            pid = os.getpid()
            named = {name: payload.fd for name, payload in self._payloads.items()} | self._assets
            return {name: f"/proc/{pid}/fd/{fd}" for name, fd in sorted(named.items())}

    @contextmanager
    def directory(self) -> Iterator[str]:
        """A private directory of symlinks to `files()`, for engines that read paths.

        Removed at the end of the block; what was opened in it stays readable.
        """
        files = self.files()
        root = tempfile.mkdtemp(prefix="weightlease-")
        try:
            for name, target in files.items():
                path = os.path.join(root, *name.split("/"))
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
                os.symlink(target, path)
            yield root
        finally:
            shutil.rmtree(root, ignore_errors=True)

    # ---- life ----

    def live_views(self) -> tuple[str, ...]:
        """Names of tensors of which a view lives, sorted."""
        return self._views.names()

    def close(self, *, strict: bool = False) -> None:
        """Give everything back; idempotent. Memory and lock of live views go with the last of them.

        Raises:
            LiveViewsError: `strict`, and views live; the lease stays open.

        """
        with self._guard:
            if self._owner is None:
                return
            names = self._views.names() if strict else ()
            if names:
                raise LiveViewsError(names)
            fds, self._fds = self._fds, []
            self._payloads, self._assets, self._copies = {}, {}, {}
            self._owner = None
            for fd in fds:
                os.close(fd)

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_owner", None) is not None:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a lease cannot be pickled: it owns descriptors of this process; "
            "acquire another one in the other process, or pass it paths from lease.files()"
        )

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<WeightLease {self.key[:12]} {state}, {len(self._manifest.files)} files>"

    # ---- inside ----

    def _adopt(self, payload_fds: Sequence[int], asset_fds: Sequence[int]) -> None:
        owner = self._require_open()
        files = self._manifest.files
        if len(payload_fds) != len(files):
            raise ManifestError(f"{len(payload_fds)} descriptors for {len(files)} payload files")
        for entry, fd in zip(files, payload_fds, strict=True):
            require_payload_name(entry.file_name)
            require_regular_file(entry.file_name, fd, entry.size)
            self._payloads[entry.file_name] = PayloadFile(entry.file_name, fd, entry.size, owner)
        if not asset_fds:
            return
        assets = self._manifest.assets
        if len(asset_fds) != len(assets):
            raise ManifestError(f"{len(asset_fds)} descriptors for {len(assets)} assets")
        for asset, fd in zip(assets, asset_fds, strict=True):
            require_regular_file(asset.path, fd, asset.size)
            self._assets[asset.path] = fd
        require_one_tree([*self._payloads, *self._assets])

    def _view(
        self, name: str, make: Callable[[memoryview, TensorLocation], tuple[ViewT, object]]
    ) -> ViewT:
        from weightlease.lease_tensors import item_size

        with self._guard:
            data, location = self._bytes(name)
            if location.begin % item_size(location.dtype):
                return make(self._aligned_copy(name, data), location)[0]
            view, keeper = make(data, location)
            if data.nbytes:
                self._views.add(name, keeper)
            return view

    def _bytes(self, name: str) -> tuple[memoryview, TensorLocation]:
        self._require_open()
        entry = self._manifest.find(name)
        payload = self._payloads.get(entry.file_name)
        if payload is None:
            raise ManifestError(f"tensor {name!r} is in undeclared file {entry.file_name!r}")
        location = payload.locate(entry.storage_key)
        if location.end - location.begin != entry.nbytes:
            raise SafetensorsFormatError(
                "size_differs",
                f"tensor {name!r} has {location.end - location.begin} bytes in {entry.file_name!r} "
                f"and {entry.nbytes} in the manifest",
            )
        return memoryview(payload.mapping())[location.begin : location.end], location

    def _aligned_copy(self, name: str, data: memoryview) -> memoryview:
        copy = self._copies.get(name)
        if copy is None:
            # The allocator aligns a bytearray for every type there is.
            copy = self._copies[name] = memoryview(bytearray(data))
        return copy

    def _require_open(self) -> LockOwner:
        if self._owner is None:
            raise WeightLeaseError.of(
                Stage.LIFECYCLE,
                FailureCode.UNSUPPORTED,
                f"the lease of {self.key} is closed; acquire it again",
            )
        return self._owner


class _LazyViews(Mapping[str, ViewT]):
    """Names at once, views on demand; nothing is cached, so a dropped view is gone."""

    def __init__(self, lease: WeightLease, make: Callable[[str], ViewT]) -> None:
        self._lease = lease
        self._make = make

    def __getitem__(self, name: str) -> ViewT:
        return self._make(name)

    def __contains__(self, name: object) -> bool:
        return name in self._lease.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._lease.names())

    def __len__(self) -> int:
        return len(self._lease.names())


_open_leases: weakref.WeakSet[WeightLease] = weakref.WeakSet()


def _renew_guards() -> None:
    # Another thread may have held a guard at the fork; in the child nobody would ever release it.
    for lease in list(_open_leases):
        lease._guard = threading.RLock()  # noqa: SLF001 - this module's own class


os.register_at_fork(after_in_child=_renew_guards)
