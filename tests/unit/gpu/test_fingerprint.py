"""The fingerprint sees what a plain sum would not, and says where."""

from __future__ import annotations

import hashlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weightlease.gpu.errors import WeightsChangedError
from weightlease.gpu.fingerprint import (
    CHUNK_BYTES,
    WORDS,
    Fingerprinter,
    changed_chunks,
    require_unchanged,
)

CPU = torch.device("cpu")
KEYED = Fingerprinter(CPU, b"k" * 32)


def memory(nbytes: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(nbytes)
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator)


def test_a_fingerprint_follows_its_formula() -> None:
    data = memory(40)
    weights = hashlib.shake_256(b"k" * 32).digest(8 * WORDS)
    raw = bytes(data.tolist())
    words = [int.from_bytes(raw[at : at + 4], "little", signed=True) for at in range(0, 40, 4)]
    total = sum(
        word * int.from_bytes(weights[8 * at : 8 * at + 8], "little", signed=True)
        for at, word in enumerate(words)
    )
    assert KEYED.take(data).chunks == (total % 2**64,)


def test_equal_bytes_under_one_key_have_one_fingerprint() -> None:
    assert KEYED.take(memory(5000)) == Fingerprinter(CPU, b"k" * 32).take(memory(5000))


def test_another_key_gives_another_fingerprint_and_keys_are_fresh() -> None:
    data = memory(5000)
    assert len({Fingerprinter(CPU).take(data).digest for _ in range(3)}) == 3


def test_two_values_that_swap_places_are_seen() -> None:
    data = memory(5000)
    swapped = data.clone().view(torch.int32)
    swapped[7], swapped[900] = int(swapped[900]), int(swapped[7])
    assert int(swapped.sum()) == int(data.view(torch.int32).sum())
    assert KEYED.take(swapped.view(torch.uint8)) != KEYED.take(data)


@settings(max_examples=30)
@given(st.integers(0, 4999), st.integers(1, 255))
def test_any_changed_byte_is_seen(at: int, change: int) -> None:
    data = memory(5000)
    altered = data.clone()
    altered[at] = int(altered[at]) ^ change
    assert KEYED.take(altered) != KEYED.take(data)


def test_two_flips_of_a_words_highest_bit_do_not_cancel() -> None:
    data = torch.zeros(4096, dtype=torch.uint8)
    altered = data.clone()
    altered[3] = altered[403] = 128
    assert KEYED.take(altered) != KEYED.take(data)


def test_whole_chunks_that_swap_places_are_seen() -> None:
    data = memory(2 * CHUNK_BYTES)
    swapped = torch.cat([data[CHUNK_BYTES:], data[:CHUNK_BYTES]])
    assert KEYED.take(swapped) != KEYED.take(data)
    assert changed_chunks(KEYED.take(data), KEYED.take(swapped)) == (0, 1)


def test_zeros_of_another_length_are_seen() -> None:
    one = torch.zeros(4096, dtype=torch.uint8)
    assert KEYED.take(one) != KEYED.take(torch.zeros(4100, dtype=torch.uint8))


def test_a_change_names_the_tensors_in_its_chunk() -> None:
    data = memory(CHUNK_BYTES + 999)
    before = KEYED.take(data)
    data[CHUNK_BYTES + 5] ^= 1

    def names_in(begin: int, end: int) -> list[str]:
        return [name for name, at in (("a", 3), ("b", CHUNK_BYTES + 10)) if begin <= at < end]

    require_unchanged(before, before, names_in)
    with pytest.raises(WeightsChangedError) as raised:
        require_unchanged(before, KEYED.take(data), names_in)
    assert raised.value.names == ("b",)
