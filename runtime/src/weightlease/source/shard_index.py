"""The index of a sharded checkpoint: `<stem>.safetensors.index.json`.

    {"metadata": {"total_size": 5, ...}, "weight_map": {"<tensor>": "<shard basename>", ...}}

It is the authority on which shards are the checkpoint: files beside it that it does not name are
not published. Its entries are hostile input. `total_size` is advice that nothing here relies on.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec

from weightlease.errors import ManifestError
from weightlease.manifest import PAYLOAD_SUFFIX, require_payload_name
from weightlease.source.errors import malformed

INDEX_SUFFIX = ".safetensors.index.json"
MAX_INDEX_BYTES = 64 * 1024 * 1024


class ShardIndex(msgspec.Struct, frozen=True):
    """A checked index: `weight_map` from tensor name to the basename of its shard."""

    path: str
    weight_map: dict[str, str]

    @property
    def shards(self) -> tuple[str, ...]:
        """The shards it names, sorted."""
        return tuple(sorted(set(self.weight_map.values())))

    def tensors_of(self, shard: str) -> frozenset[str]:
        """The tensors it places in `shard`."""
        return frozenset(name for name, file in self.weight_map.items() if file == shard)


def parse_index(path: str, data: bytes) -> ShardIndex:
    """Read the index at `path`.

    Raises:
        SourceError: `SourceMalformed`, with the entry and what is wrong with it.

    """
    try:
        decoded = json.loads(data, object_pairs_hook=_unique_pairs)
    except (ValueError, RecursionError) as error:
        raise malformed(f"index {path!r} is not valid JSON: {error}", path=path) from error
    weight_map = decoded.get("weight_map") if isinstance(decoded, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise malformed(f"index {path!r} has no weight_map with entries", path=path)
    for tensor, shard in weight_map.items():
        _require_shard_name(path, tensor, shard)
    return ShardIndex(path, weight_map)


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Parsers disagree on which of two equal keys counts, so neither does.
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0][:200]
        raise ValueError(f"key {twice!r} appears twice")
    return found


def _require_shard_name(path: str, tensor: str, shard: Any) -> None:
    where = f"index {path!r}, tensor {tensor[:200]!r}"
    if not isinstance(shard, str):
        raise malformed(f"{where}: the shard is not a string", path=path)
    shown = shard[:200]
    if "\\" in shard:
        raise malformed(f"{where}: shard {shown!r} has a backslash", path=path)
    try:
        shard.encode()
        require_payload_name(shard)
    except (ManifestError, UnicodeEncodeError):
        raise malformed(
            f"{where}: shard {shown!r} is not one plain file name beside the index; for shards in "
            "a subfolder declare a component with that path",
            path=path,
        ) from None
    if not shard.endswith(PAYLOAD_SUFFIX):
        raise malformed(f"{where}: shard {shown!r} does not end in {PAYLOAD_SUFFIX}", path=path)
