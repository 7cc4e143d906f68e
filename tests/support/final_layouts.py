"""A small model with everything that makes a final layout hard, and its publication and restore."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from weightlease.lease import WeightLease
from weightlease.producer.final_layout import FINAL_LAYOUT_BF16, FinalLayoutBF16Producer
from weightlease.reports import StoreStatus
from weightlease.restore import (
    FinalLayoutContext,
    FinalLayoutModelContract,
    FinalLayoutRequest,
    FinalLayoutTensorRestorer,
    LoaderIdentity,
)
from weightlease.restore.models.checks import preserved_float32
from weightlease.source.folder import FolderSource
from weightlease.source.prepared import CheckpointAdapter, PreparedWeightSource, prepare
from weightlease.store.local import LocalStore

WIDTH = 8
FLOAT32 = ("norm.*", "running")
LOADER = LoaderIdentity(name="test-loader", version="1", configuration_sha256="c" * 64)
REQUEST = FinalLayoutRequest(component="dit", loader=LOADER)


class Small(torch.nn.Module):
    """Tied weights, a preserved FP32 norm, integer and scalar buffers, and a derived table."""

    table: torch.Tensor
    steps: torch.Tensor

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(width, width, bias=False)
        self.norm = torch.nn.LayerNorm(width)
        self.body = torch.nn.Sequential(torch.nn.Linear(width, 2 * width), torch.nn.GELU())
        self.out = torch.nn.Linear(width, width, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("steps", torch.arange(3))
        self.register_buffer("running", torch.tensor(1.5))
        self.register_buffer("table", torch.linspace(0, 1, width), persistent=False)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.embed(value).float() + self.table) * self.running
        out: torch.Tensor = self.out(hidden.to(self.embed.weight.dtype))
        out += self.body(out).sum() + self.steps.sum()
        return out


def table_of(model: torch.nn.Module) -> Mapping[str, torch.Tensor]:
    assert isinstance(model, Small)
    return {"table": torch.linspace(0, 1, model.table.shape[0])}


CONTRACT = FinalLayoutModelContract(
    "test.Small", "1", FLOAT32, derive=table_of, validate=preserved_float32(FLOAT32)
)


def finished(seed: int = 0) -> Small:
    """A CPU model in its final layout."""
    torch.manual_seed(seed)
    model = Small()
    table = model.table
    model.to(torch.bfloat16)
    model.norm.float()
    model.running = model.running.float()
    model.table = table
    return model.eval().requires_grad_(requires_grad=False)


def skeleton() -> Small:
    """The same architecture without memory, in torch's default dtype."""
    with torch.device("meta"):
        return Small().eval()


def prepared(folder: Path) -> PreparedWeightSource:
    """A source of one file below `folder`, hashed."""
    folder.mkdir(exist_ok=True)
    checkpoint = folder / "model.safetensors"
    if not checkpoint.exists():
        checkpoint.write_bytes(b"canonical bytes")
    source = FolderSource(str(folder), ".")
    return prepare(
        source, tuple(source.files()), CheckpointAdapter("test-adapter", "1"), model_id="org/small"
    )


@dataclass
class World:
    """One store and one source; `context()` is what producer and restorer agree on."""

    place: Path
    contract: FinalLayoutModelContract = CONTRACT
    request: FinalLayoutRequest = REQUEST
    build: Callable[[], torch.nn.Module] = skeleton
    source: PreparedWeightSource = field(init=False)
    store: LocalStore = field(init=False)

    def __post_init__(self) -> None:
        self.source = prepared(self.place / "source")
        self.store = LocalStore(self.place / "domain")

    def context(
        self,
        model: torch.nn.Module | None = None,
        *,
        contract: FinalLayoutModelContract | None = None,
        request: FinalLayoutRequest | None = None,
    ) -> FinalLayoutContext:
        return FinalLayoutContext.of(
            request or self.request,
            self.source,
            self.build() if model is None else model,
            FINAL_LAYOUT_BF16,
            contract or self.contract,
        )

    def publish(
        self, model: torch.nn.Module, context: FinalLayoutContext | None = None, **options: int
    ) -> WeightLease:
        producer = FinalLayoutBF16Producer(context or self.context(), model, **options)
        built = self.store.get_or_build(producer)
        assert built.lease is not None, built.failure
        assert built.status is StoreStatus.BUILT
        return built.lease

    def restorer(self, context: FinalLayoutContext | None = None) -> FinalLayoutTensorRestorer:
        return FinalLayoutTensorRestorer(context or self.context())

    def broken(self, contract: FinalLayoutModelContract) -> FinalLayoutContext:
        """The same identity with another behaviour behind the contract's unchanged name."""
        return replace(self.context(), contract=contract)


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether dtype, shape and every bit agree."""
    return one.dtype == other.dtype and one.shape == other.shape and bool(torch.equal(one, other))
