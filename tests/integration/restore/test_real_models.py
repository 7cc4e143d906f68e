"""Published from a canonical load, restored into a meta skeleton: same bits, same outputs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from final_layouts import World, equal
from weightlease.lease import WeightLease
from weightlease.restore import ContractViolation, Violation
from weightlease.restore.models import flux2_klein, minimax_h3

if TYPE_CHECKING:
    from real_models import RealModel

NAMES = ["wan-transformer", "wan-text-encoder", "wan-vae", "flux2-klein", "minimax-h3"]


@dataclass
class Case:
    """One architecture: its canonical load, and the lease of what that load was published as."""

    real: RealModel
    world: World
    canonical: torch.nn.Module
    lease: WeightLease

    def restored(self) -> torch.nn.Module:
        model = self.real.skeleton()
        self.world.restorer().plan_restore(model, self.lease).commit()
        return model


def real_model(name: str) -> RealModel:
    # the libraries' own imports warn of each other
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from real_models import REAL_MODELS
    return REAL_MODELS[name]


@pytest.fixture(params=NAMES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    real = real_model(request.param)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        canonical = real.canonical(tmp_path / "canonical")
    world = World(tmp_path, contract=real.contract, build=real.skeleton)
    with world.publish(canonical) as lease:
        yield Case(real, world, canonical, lease)


def test_a_restored_model_holds_every_bit_of_the_canonical_one(case: Case) -> None:
    wanted, found = case.canonical.state_dict(), case.restored().state_dict()
    assert wanted.keys() == found.keys()
    assert [name for name in wanted if not equal(wanted[name], found[name])] == []


def test_derived_buffers_are_those_of_a_canonical_load(case: Case) -> None:
    wanted = dict(case.canonical.named_buffers())
    found = dict(case.restored().named_buffers())
    assert wanted.keys() == found.keys()
    assert [name for name in wanted if not equal(wanted[name], found[name])] == []


def test_a_restored_model_computes_what_the_canonical_one_does(case: Case) -> None:
    with torch.no_grad():
        wanted, found = case.real.call(case.canonical), case.real.call(case.restored())
    assert bool(torch.isfinite(wanted).all())
    assert equal(wanted, found)


def test_a_restore_copies_nothing(case: Case) -> None:
    model = case.restored()
    assert case.lease.copied_bytes == 0
    owned = {name for name, _ in model.named_parameters()}
    assert owned <= set(case.lease.live_views())


def test_both_skeletons_make_one_key(case: Case) -> None:
    on_cpu = case.world.context(case.canonical).identity.key
    assert on_cpu == case.world.context().identity.key == case.lease.key


def test_flux2_klein_at_its_real_depth_is_described_and_another_depth_is_refused(
    tmp_path: Path,
) -> None:
    real = real_model("flux2-klein")
    world = World(tmp_path, contract=flux2_klein(), build=real.skeleton)
    with pytest.raises(ContractViolation, match="has 2 blocks and must have 5") as caught:
        world.context()
    assert caught.value.reason is Violation.MODEL_CONTRACT_UNSUPPORTED


def test_flux2_klein_with_another_packed_mapping_is_refused(tmp_path: Path) -> None:
    real = real_model("flux2-klein")
    model = real.skeleton()
    packed = model.get_submodule("single_transformer_blocks.0.attn.to_qkv_mlp_proj")
    packed.register_parameter("weight", torch.nn.Parameter(torch.empty(96, 32, device="meta")))
    world = World(tmp_path, contract=real.contract, build=real.skeleton)
    with pytest.raises(ContractViolation, match="to_qkv_mlp_proj has shape"):
        world.context(model)


def test_minimax_h3_whose_float32_parts_were_narrowed_is_not_published(tmp_path: Path) -> None:
    real = real_model("minimax-h3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = real.canonical(tmp_path / "canonical")
    model.get_submodule("time_embedder").to(torch.bfloat16)
    world = World(tmp_path, contract=real.contract, build=real.skeleton)
    with pytest.raises(AssertionError, match="time_embedder"):
        world.publish(model)


def test_minimax_h3_at_full_size_has_its_contract_on_meta(tmp_path: Path) -> None:
    architecture = type(real_model("minimax-h3").skeleton())
    with torch.device("meta"):
        model = architecture()
    world = World(tmp_path, contract=minimax_h3(), build=lambda: model)
    context = world.context()
    owned = context.owned_by(model)
    size = sum(
        slot.tensor.numel() for t in owned.targets if (slot := t.slots[0]).tensor is not None
    )
    assert size > 30_000_000_000


def test_a_diffusers_component_is_published_by_its_first_start_and_leased_by_its_second(
    tmp_path: Path,
) -> None:
    from weightlease.integrations.diffusers import pretrained
    from weightlease.integrations.transaction import load_component
    from weightlease.producer.final_layout import FINAL_LAYOUT_BF16, FinalLayoutBF16Producer
    from weightlease.runtime import HostWeightRuntime, RuntimeMode, RuntimePolicy
    from weightlease.source.folder import FolderSource
    from weightlease.source.prepared import CheckpointAdapter, PreparedWeightSource, prepare

    real = real_model("wan-transformer")
    folder = tmp_path / "wan"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        canonical = real.canonical(folder)

    def source() -> PreparedWeightSource:
        found = FolderSource(str(folder), ".")
        adapter = CheckpointAdapter("diffusers", "1")
        return prepare(found, tuple(found.files()), adapter, model_id="wan")

    loader = pretrained(
        type(canonical),
        str(folder),
        source,
        real.contract,
        component="transformer",
        spec=FINAL_LAYOUT_BF16,
        producer=FinalLayoutBF16Producer,
    )
    policy = RuntimePolicy(RuntimeMode.PREFERRED, allow_post_load_publish=True)
    store = World(tmp_path).store
    outputs = []
    for leased in (False, True):
        with load_component(HostWeightRuntime(lambda: store, policy), loader) as loaded:
            assert loaded.from_lease is leased, loaded.resolution
            with torch.no_grad():
                outputs.append(real.call(loaded.model))
    assert equal(*outputs)
