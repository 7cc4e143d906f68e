"""A donor in a thread, over a real socket, on a fake device; and the models that it lends."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import torch
from torch import nn

from weightlease.gpu import WeightCacheClient, WeightCacheKey, serve_weight_cache
from weightlease.gpu.donor import DonorReport
from weightlease.gpu.fake import FakeDevice

PATIENCE_SECONDS = 30.0
KEY = WeightCacheKey("revision-1", "model", "configuration-1", "float32", "processing-1")


class Small(nn.Module):
    """Ties, a non-persistent buffer, an integer buffer and an odd size."""

    steps: torch.Tensor
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 7)
        self.inner = nn.Linear(7, 5)
        self.head = nn.Linear(7, 13, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.arange(3))
        self.register_buffer("scale", torch.ones(()), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        result: torch.Tensor = self.head(hidden) * self.scale + self.inner(hidden).sum()
        return result


def small() -> Small:
    """A loaded, idle model with weights of its own."""
    torch.manual_seed(3)
    model = Small()
    model.scale.fill_(1.5)
    return model.eval()


class RunningDonor:
    """`serve_weight_cache` in a thread; ready when constructed."""

    def __init__(
        self,
        place: Path,
        model: nn.Module | None = None,
        key: WeightCacheKey = KEY,
        **choices: Any,
    ) -> None:
        self.place = place
        self.model = small() if model is None else model
        self.device = choices.setdefault("device", FakeDevice())
        self.stop = threading.Event()
        self.report: DonorReport | None = None
        self.error: BaseException | None = None
        self._choices = choices
        self._key = key
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE_SECONDS)

    def client(self, key: WeightCacheKey = KEY, **choices: Any) -> WeightCacheClient:
        """A consumer's client on a device object of its own, as another process would have."""
        choices.setdefault("device", FakeDevice())
        return WeightCacheClient(self.place, key, **choices)

    def ask_to_stop(self) -> None:
        """Set the stop event; `end` waits."""
        self.stop.set()

    @property
    def running(self) -> bool:
        """Whether the call has not returned."""
        return self._thread.is_alive()

    def end(self) -> DonorReport | None:
        """Stop and wait; the report, or None after an error."""
        self.stop.set()
        # Attachments that a failed test left behind would hold the donor.
        gc.collect()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        return self.report

    def _run(self) -> None:
        try:
            self.report = serve_weight_cache(
                self.model,
                self._key,
                self.place,
                stop=self.stop,
                on_ready=self._ready.set,
                **self._choices,
            )
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error
            self._ready.set()
