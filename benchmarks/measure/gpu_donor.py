"""`python -m measure.gpu_donor KIND SOCKET TRANSPORT [FOLDER]`: a process that lends one model.

KIND is `wan` (Wan 2.1 1.3B's transformer at full size, random weights, saved to FOLDER where one is
given) or a number of GiB in one buffer. Says one JSON line when it is ready and stops when its
standard input closes. `used_bytes` are the device's, sampled while the weights moved.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import torch
from torch import nn

from measure.gpu_models import build, key_of
from weightlease.gpu import serve_weight_cache

SAMPLE_SECONDS = 0.0005


def loaded(kind: str, folder: str) -> nn.Module:
    """The module with random weights, on the GPU; saved to `folder` where one is given."""
    torch.manual_seed(1)
    with torch.device("cuda"):
        model: Any = build(kind).eval()
    if folder:
        model.save_pretrained(folder, max_shard_size="100GB")
    for buffer in model.buffers():
        if buffer.dtype == torch.uint8:
            buffer.random_(0, 256)
    return model  # type: ignore[no-any-return]


class Sampler:
    """The most memory of the device that was in use while it ran."""

    def __init__(self) -> None:
        self.most = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def end(self) -> int:
        """Stop; the most, in bytes."""
        self._stop.set()
        self._thread.join()
        return self.most

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self.most = max(self.most, used_bytes())


def used_bytes() -> int:
    """Memory of the device in use, by anybody."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def main() -> None:
    """Lend until told to stop."""
    kind, path, transport, *folder = sys.argv[1:]
    stop = threading.Event()
    torch.empty(1, device="cuda")
    context = used_bytes()
    model = loaded(kind, folder[0] if folder else "")
    torch.cuda.empty_cache()
    before = used_bytes()
    sampler = Sampler()

    def ready() -> None:
        most = sampler.end()
        used = {"context": context, "loaded": before, "most": most, "ready": used_bytes()}
        print(json.dumps({"used_bytes": used}), flush=True)

    def wait() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    serve_weight_cache(model, key_of(kind), path, stop=stop, transport=transport, on_ready=ready)


if __name__ == "__main__":
    main()
