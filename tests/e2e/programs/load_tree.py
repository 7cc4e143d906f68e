"""What an engine does that knows nothing of weightlease: load a model from a folder of files.

One JSON line: {"count": 0, "weights": sha256 over every parameter, "shape": of a sentence's
embedding}. With a second argument, that many more lines, one a second, each from the files as they
are then: {"count", "file": sha256 of the weights' file}.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time

import torch
from transformers import AutoModel, AutoTokenizer


def main() -> None:
    folder = sys.argv[1]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    with torch.inference_mode():
        hidden = model(**tokenizer("a sentence", return_tensors="pt")).last_hidden_state
    line = {"count": 0, "weights": digest.hexdigest(), "shape": hidden.shape[-1]}
    print(json.dumps(line), flush=True)
    for count in range(1, int(sys.argv[2]) + 1 if len(sys.argv) > 2 else 1):
        time.sleep(1)
        with open(f"{folder}/model.safetensors", "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        print(json.dumps({"count": count, "file": found}), flush=True)


main()
