"""The same embeddings without weightlease: from the original file, one digest per folder.

Tensors start where they start in the file. Kernels may round differently on other alignments, so
only loading like this can be compared bit by bit.

    python canonical_minilm.py FOLDER...
"""

from __future__ import annotations

import json
import mmap
import sys

import torch

from minilm import SENTENCES, Encoder, digest

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64}


def mapped_tensors(path: str) -> dict[str, torch.Tensor]:
    """Every tensor of a safetensors file over one private mapping of it."""
    with open(path, "rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    length = int.from_bytes(mapping[:8], "little")
    header = json.loads(mapping[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype = DTYPES[entry["dtype"]]
        flat = torch.frombuffer(
            mapping, dtype=dtype, count=(end - begin) // dtype.itemsize, offset=8 + length + begin
        )
        tensors[name] = flat.view(entry["shape"])
    return tensors


def main() -> None:
    for folder in sys.argv[1:]:
        encoder = Encoder(folder, mapped_tensors(f"{folder}/model.safetensors"))
        print(json.dumps({"embeddingSha256": digest(encoder.embed(SENTENCES))}), flush=True)


if __name__ == "__main__":
    main()
