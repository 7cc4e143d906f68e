"""The memory under a lease: read-only shared mappings, and who keeps them alive.

    tensor ── memoryview slice ── PayloadMapping (mmap) ── LockOwner (flock descriptor)

Every view holds the one below it, so a lease may close at any time: the mapping is unmapped and the
lock is given up when the last view goes. Nothing here calls `mmap.close()`: under a live
`torch.frombuffer` tensor that would succeed, and the next read would kill the process.

    payload file    u64 little-endian header length | JSON header | tensor bytes
    header          {"<storage key>": {"dtype", "shape", "data_offsets": [begin, end]}, …}
"""

from __future__ import annotations

import mmap
import os
import stat
import weakref
from typing import NoReturn

import msgspec

from weightlease.errors import SafetensorsFormatError
from weightlease.safetensors_format import MAX_HEADER_BYTES


class LockOwner:
    """Owns the descriptor whose shared flock is the lease; closes it when nothing refers to it.

    Always a plain close, never LOCK_UN: a forked child that closes its copy must not unlock its
    parent's.
    """

    def __init__(self, fd: int) -> None:
        self._finalizer = weakref.finalize(self, os.close, fd)
        # At exit the kernel closes it, after every view; an earlier close would free a used lease.
        self._finalizer.atexit = False


class PayloadMapping(mmap.mmap):
    """One payload file in memory, shared and PROT_READ; only dropping the last view unmaps it."""

    owner: LockOwner

    @classmethod
    def of(cls, fd: int, size: int, owner: LockOwner) -> PayloadMapping:
        """Map `size` bytes of `fd`; the caller keeps its descriptor."""
        mapping = cls(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        mapping.owner = owner
        return mapping

    def close(self) -> NoReturn:
        """Refuse: views may live.

        Raises:
            BufferError: always.

        """
        raise BufferError("a leased mapping closes by itself when its last view goes")


class TensorLocation(msgspec.Struct, frozen=True):
    """Where a tensor's bytes are in its file; `begin` and `end` in bytes from the file's start."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class _HeaderEntry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


_PREFIX_BYTES = 8
# A holder of few tensors finds each in the header's text; from then on an index is cheaper.
_SEARCHES = 4
# One level deep: a tensor's own entry is decoded when that tensor is asked for.
_header_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw], strict=True)
_entry_decoder = msgspec.json.Decoder(_HeaderEntry, strict=True)


class PayloadFile:
    """One leased payload: its descriptor, its mapping and its header, each made on first use."""

    def __init__(self, name: str, fd: int, size: int, owner: LockOwner) -> None:
        self.name = name
        self.fd = fd
        self._size = size
        self._owner = owner
        self._mapping: PayloadMapping | None = None
        self._header: bytes | None = None
        self._entries: dict[str, msgspec.Raw] | None = None
        self._searches = 0

    def mapping(self) -> PayloadMapping:
        """The mapping of the whole file."""
        if self._mapping is None:
            self._mapping = PayloadMapping.of(self.fd, self._size, self._owner)
        return self._mapping

    def locate(self, storage_key: str) -> TensorLocation:
        """Find `storage_key` in the header; what it says lies inside the file.

        Raises:
            SafetensorsFormatError: a header that lies, or lacks the key.

        """
        header = self._header
        if header is None:
            header = self._header = _read_header(self.name, self.fd, self._size)
        raw = self._entry(header, storage_key)
        if raw is None:
            raise SafetensorsFormatError(
                "tensor_missing", f"{self.name}: the header lacks {storage_key!r}"
            )
        try:
            entry = _entry_decoder.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise SafetensorsFormatError(
                "entry_malformed", f"{self.name}: entry {storage_key!r} is malformed: {error}"
            ) from error
        begin, end = entry.data_offsets
        start = _PREFIX_BYTES + len(header)
        if not 0 <= begin <= end <= self._size - start or min(entry.shape, default=0) < 0:
            raise SafetensorsFormatError(
                "offsets_invalid",
                f"{self.name}: {storage_key!r} spans {begin}..{end}, outside the file's data",
            )
        return TensorLocation(entry.dtype, entry.shape, start + begin, start + end)

    def _entry(self, header: bytes, storage_key: str) -> bytes | msgspec.Raw | None:
        if self._entries is None and self._searches < _SEARCHES:
            self._searches += 1
            found = _search(header, storage_key)
            if found is not None:
                return found
        if self._entries is None:
            self._entries = _index(self.name, header)
        return self._entries.get(storage_key)


class LiveViews:
    """Which views handed out still live, by name; holds none of them alive."""

    def __init__(self) -> None:
        # Keyed by the reference's id: hashing a memoryview would hash its bytes.
        self._live: dict[int, tuple[weakref.ref[object], str]] = {}

    def add(self, name: str, view: object) -> None:
        """Remember `view` until it dies."""
        reference = weakref.ref(view, self._forget)
        self._live[id(reference)] = (reference, name)

    def names(self) -> tuple[str, ...]:
        """Names with at least one live view, sorted."""
        live = list(self._live.values())
        return tuple(sorted({name for reference, name in live if reference() is not None}))

    def _forget(self, reference: weakref.ref[object]) -> None:
        self._live.pop(id(reference), None)


def require_regular_file(what: str, fd: int, size: int) -> None:
    """A received descriptor is a regular file of exactly the declared size.

    Raises:
        SafetensorsFormatError: what it is instead.

    """
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise SafetensorsFormatError("not_a_file", f"{what} is not a regular file")
    if found.st_size != size:
        raise SafetensorsFormatError(
            "size_differs", f"{what} has {found.st_size} bytes where the manifest says {size}"
        )


def _read_header(name: str, fd: int, size: int) -> bytes:
    prefix = os.pread(fd, _PREFIX_BYTES, 0)
    length = int.from_bytes(prefix, "little")
    fits = length <= MAX_HEADER_BYTES and _PREFIX_BYTES + length <= size
    # Read, not mapped: a Raw that pointed into the mapping would count as a live view.
    header = os.pread(fd, length, _PREFIX_BYTES) if fits else b""
    if len(prefix) < _PREFIX_BYTES or len(header) != length:
        raise SafetensorsFormatError(
            "header_length", f"{name}: a header of {length} bytes does not fit {size} bytes"
        )
    return header


def _search(header: bytes, storage_key: str) -> bytes | None:
    """The entry of `storage_key` in a header without white space, or None: the index knows.

    A quotation mark inside a name is written with a backslash before it, so what is found is a
    whole name, unless its first mark has that backslash.
    """
    wanted = msgspec.json.encode(storage_key) + b":{"
    found = header.find(wanted)
    if found < 1 or header[found - 1 : found] == b"\\":
        return None
    begin = found + len(wanted) - 1
    end = header.find(b"}", begin)
    return header[begin : end + 1] if end > 0 else None


def _index(name: str, header: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _header_decoder.decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SafetensorsFormatError(
            "header_malformed", f"{name}: the header is malformed: {error}"
        ) from error
