"""A keyed, position-dependent fingerprint of bytes in GPU memory, computed where they lie.

    words      32-bit signed, in chunks of 2^20; the last one is filled up with zeros
    weights    2^20 64-bit numbers: SHAKE-256 of the key
    chunk      sum over its words of word * weight, modulo 2^64
    digest     BLAKE2b, keyed, of the number of bytes and of every chunk in order

Without the key a change goes unseen with probability at most 2^-33 for each changed chunk: two
chunks that differ meet only where the sum of word difference * weight is 0, and a difference of
32-bit words has at most 31 factors of two. A plain sum would not see two values that swap places.
One pass over the memory: about 45 bytes of traffic for each 4 bytes of weights.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from weightlease.gpu.errors import WeightsChangedError

WORDS = 1 << 20
CHUNK_BYTES = 4 * WORDS
KEY_BYTES = 32
# chunks at once: bounds the working memory to about 16 * 8 MiB twice
_BATCH = 16


@dataclass(frozen=True)
class Fingerprint:
    """Of `nbytes` bytes under one key; comparable only with another under the same key."""

    nbytes: int
    chunks: tuple[int, ...]
    digest: str


class Fingerprinter:
    """Takes fingerprints under one key, on one device; the key must stay secret from writers."""

    def __init__(self, device: torch.device, key: bytes = b"") -> None:
        """Use `key`, or a fresh one; hashing out the weights takes about 20 ms."""
        self._key = key or secrets.token_bytes(KEY_BYTES)
        drawn = bytearray(hashlib.shake_256(self._key).digest(8 * WORDS))
        self._weights = torch.frombuffer(drawn, dtype=torch.int64).to(device)

    def take(self, memory: torch.Tensor) -> Fingerprint:
        """The fingerprint of `memory`, flat uint8 on this device; waits for the device."""
        sums = [
            int(each) & (2**64 - 1)
            for begin in range(0, memory.numel(), _BATCH * CHUNK_BYTES)
            for each in self._sums(memory[begin : begin + _BATCH * CHUNK_BYTES])
        ]
        digest = hashlib.blake2b(struct.pack("<Q", memory.numel()), key=self._key, digest_size=32)
        digest.update(struct.pack(f"<{len(sums)}Q", *sums))
        return Fingerprint(memory.numel(), tuple(sums), digest.hexdigest())

    def _sums(self, memory: torch.Tensor) -> list[int]:
        whole = memory.numel() // CHUNK_BYTES * CHUNK_BYTES
        found: list[int] = []
        if whole:
            words = memory[:whole].view(torch.int32).view(-1, WORDS)
            found += (words.to(torch.int64) * self._weights).sum(dim=1).tolist()
        if whole < memory.numel():
            rest = torch.zeros(CHUNK_BYTES, dtype=torch.uint8, device=memory.device)
            rest[: memory.numel() - whole] = memory[whole:]
            found.append(int((rest.view(torch.int32).to(torch.int64) * self._weights).sum()))
        return found


def changed_chunks(before: Fingerprint, now: Fingerprint) -> tuple[int, ...]:
    """Numbers of the chunks that differ; empty when the fingerprints are equal."""
    if hmac.compare_digest(before.digest, now.digest):
        return ()
    length = max(len(before.chunks), len(now.chunks))
    return tuple(
        number
        for number in range(length)
        if before.chunks[number : number + 1] != now.chunks[number : number + 1]
    )


NamesIn = Callable[[int, int], Iterable[str]]


def require_unchanged(before: Fingerprint, now: Fingerprint, names_in: NamesIn) -> None:
    """The two are equal; `names_in(begin, end)` names the tensors in a range of bytes.

    Raises:
        WeightsChangedError: they are not; names the tensors in the chunks that differ.

    """
    if before == now:
        return
    names = {
        name
        for number in changed_chunks(before, now)
        for name in names_in(number * CHUNK_BYTES, (number + 1) * CHUNK_BYTES)
    }
    raise WeightsChangedError(sorted(names) or ["bytes between the tensors"])
