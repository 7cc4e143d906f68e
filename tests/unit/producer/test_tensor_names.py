"""What only several shards together can show is noticed while they stream."""

from __future__ import annotations

import pytest

from tensor_files import tensor_file
from weightlease.producer.tensor_names import TensorNames
from weightlease.source.errors import SourceError
from weightlease.source.shard_index import ShardIndex


def feed(names: TensorNames, file: str, content: bytes, step: int) -> None:
    reader = names.of(file)
    for start in range(0, len(content), step):
        reader.feed(memoryview(content)[start : start + step])


@pytest.mark.parametrize("step", [1, 3, 8, 9, 4096])
def test_one_tensor_in_two_shards_names_the_tensor_and_both_files(step: int) -> None:
    names = TensorNames()
    feed(names, "1.safetensors", tensor_file({"a": b"1", "w": b"2"}), step)
    with pytest.raises(SourceError) as caught:
        feed(names, "2.safetensors", tensor_file({"w": b"2", "z": b"3"}), step)
    for part in ("'w'", "'1.safetensors'", "'2.safetensors'"):
        assert part in caught.value.failure.message


@pytest.mark.parametrize("step", [1, 7, 4096])
def test_a_tensor_that_the_index_promises_and_the_shard_lacks_is_refused(step: int) -> None:
    index = ShardIndex("i.json", {"a": "1.safetensors", "b": "1.safetensors"})
    with pytest.raises(SourceError, match=r"'b'"):
        feed(TensorNames(index), "1.safetensors", tensor_file({"a": b"1", "c": b"1"}), step)


def test_metadata_is_no_tensor() -> None:
    names = TensorNames()
    text = b'{"__metadata__":{"format":"pt"}}'
    content = len(text).to_bytes(8, "little") + text
    feed(names, "1.safetensors", content, 5)
    feed(names, "2.safetensors", content, 5)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        bytes(8),
        b"\xff" * 4096,
        (2**63 - 1).to_bytes(8, "little") + b"{}",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    ],
)
def test_what_is_no_header_is_left_to_the_store(content: bytes) -> None:
    feed(TensorNames(), "1.safetensors", content, 4)
