"""Small safetensors files, made by hand so that they can also be wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping


def tensor_file(tensors: Mapping[str, bytes]) -> bytes:
    """A valid file of U8 vectors."""
    header, data = {}, b""
    for name, content in tensors.items():
        end = len(data) + len(content)
        header[name] = {"dtype": "U8", "shape": [len(content)], "data_offsets": [len(data), end]}
        data += content
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def index_file(weight_map: Mapping[str, object]) -> bytes:
    """An index with that weight_map."""
    return json.dumps({"metadata": {"total_size": 1}, "weight_map": dict(weight_map)}).encode()
