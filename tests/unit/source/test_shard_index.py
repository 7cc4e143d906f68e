"""An index is hostile until each of its entries is one plain file name."""

from __future__ import annotations

import json

import pytest

from tensor_files import index_file
from weightlease.reasons import Reason
from weightlease.source.errors import SourceError
from weightlease.source.shard_index import parse_index


def test_an_index_gives_its_shards_and_their_tensors() -> None:
    index = parse_index(
        "i", index_file({"a": "2.safetensors", "b": "1.safetensors", "c": "2.safetensors"})
    )
    assert index.shards == ("1.safetensors", "2.safetensors")
    assert index.tensors_of("2.safetensors") == {"a", "c"}


@pytest.mark.parametrize(
    "shard",
    [
        "../o.safetensors",
        "/etc/hostname",
        "a/../../b.safetensors",
        "./m.safetensors",
        "sub/m.safetensors",
        "",
        "..",
        "a\\m.safetensors",
        "m\0.safetensors",
        "\ud800.safetensors",
        "model.bin",
        7,
        None,
        ["m.safetensors"],
        True,
    ],
)
def test_an_entry_that_is_not_one_plain_safetensors_name_is_refused(shard: object) -> None:
    with pytest.raises(SourceError) as caught:
        parse_index("model.safetensors.index.json", index_file({"weight": shard}))
    assert caught.value.reason is Reason.SOURCE_MALFORMED
    assert "'weight'" in caught.value.failure.message
    caught.value.failure.message.encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"weight_map": {}}',
        b'{"weight_map": []}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"weight_map": {"a": "1.safetensors", "a": "2.safetensors"}}',
        b'{"weight_map": {"a": "1.safetensors"}, "weight_map": {"a": "2.safetensors"}}',
    ],
)
def test_what_is_not_exactly_one_index_is_refused(data: bytes) -> None:
    with pytest.raises(SourceError) as caught:
        parse_index("i", data)
    assert caught.value.reason is Reason.SOURCE_MALFORMED


def test_a_wrong_total_size_is_no_reason_to_refuse() -> None:
    data = json.dumps({"metadata": {"total_size": -1}, "weight_map": {"a": "m.safetensors"}})
    assert parse_index("i", data.encode()).shards == ("m.safetensors",)
