"""One component's load: the lease where the policy has one, else the canonical loader, typed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest
import torch

from final_layouts import CONTRACT, World, equal, finished
from weightlease.errors import FailureCode
from weightlease.identity import WeightArtifactIdentity
from weightlease.integrations.transaction import (
    ComponentLoader,
    LoadFailedError,
    load_component,
    load_pipeline,
)
from weightlease.producer.final_layout import FinalLayoutBF16Producer
from weightlease.reports import CleanupStatus
from weightlease.restore import FinalLayoutContext
from weightlease.runtime import (
    HostWeightRuntime,
    PublicationOutcome,
    ResolutionOutcome,
    RuntimeMode,
    RuntimePolicy,
)
from weightlease.store.local import LocalStore


@dataclass
class Library:
    """A model library that counts what it is asked for."""

    world: World
    asked: list[str] = field(default_factory=list)
    context_of: Callable[[World], FinalLayoutContext] = World.context

    @property
    def loader(self) -> ComponentLoader:
        return ComponentLoader(self.context, self.skeleton, self.canonical, FinalLayoutBF16Producer)

    def context(self) -> FinalLayoutContext:
        self.asked.append("context")
        return self.context_of(self.world)

    def skeleton(self) -> torch.nn.Module:
        self.asked.append("skeleton")
        return self.world.build()

    def canonical(self) -> torch.nn.Module:
        self.asked.append("canonical")
        return finished()


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(World(tmp_path))


def runtime(
    library: Library, mode: RuntimeMode = RuntimeMode.PREFERRED, *, publish: bool = True
) -> HostWeightRuntime:
    policy = RuntimePolicy(mode, allow_post_load_publish=publish)
    return HostWeightRuntime(lambda: library.world.store, policy)


def computes_as_canonical(model: torch.nn.Module) -> bool:
    value = torch.linspace(-1, 1, 8, dtype=torch.bfloat16).reshape(1, 8)
    return equal(model(value), finished()(value))


def test_a_cold_start_loads_canonically_and_publishes_and_a_warm_one_restores(
    library: Library,
) -> None:
    with load_component(runtime(library), library.loader) as cold:
        assert cold.resolution.outcome is ResolutionOutcome.CANONICAL_FALLBACK
        assert cold.publication is not None
        assert cold.publication.outcome is PublicationOutcome.PUBLISHED
        assert not cold.from_lease
    library.asked.clear()
    with load_component(runtime(library), library.loader) as warm:
        assert warm.resolution.outcome is ResolutionOutcome.LOCAL_HIT
        assert warm.from_lease
        assert computes_as_canonical(warm.model)
    assert library.asked == ["context", "skeleton"], "a warm start loads nothing canonically"


def test_a_disabled_runtime_asks_for_nothing_but_the_canonical_model(library: Library) -> None:
    with load_component(runtime(library, RuntimeMode.DISABLED), library.loader) as loaded:
        assert loaded.resolution.outcome is ResolutionOutcome.CANONICAL_DIRECT
        assert loaded.publication is not None
        assert loaded.publication.outcome is PublicationOutcome.RUNTIME_DISABLED
    assert library.asked == ["canonical"]


def test_a_required_runtime_never_loads_canonically(library: Library) -> None:
    with pytest.raises(LoadFailedError) as caught:
        load_component(runtime(library, RuntimeMode.REQUIRED), library.loader)
    assert caught.value.failure.code is FailureCode.PRODUCER_UNAVAILABLE
    assert "canonical" not in library.asked


def with_contract(**changes: object) -> Callable[[World], FinalLayoutContext]:
    def make(world: World) -> FinalLayoutContext:
        return world.broken(replace(CONTRACT, **changes))  # type: ignore[arg-type]

    return make


def refuse(model: torch.nn.Module) -> None:
    raise ValueError("the invariant does not hold")


FAILURES = [
    ({"derive": lambda model: {}}, FailureCode.RESTORE_PREFLIGHT_FAILED),
    ({"validate": refuse}, FailureCode.RESTORE_COMMIT_FAILED),
]


@pytest.mark.parametrize(("change", "code"), FAILURES, ids=["plan", "commit"])
def test_a_failed_restore_falls_back_to_a_fresh_model_where_preferred(
    library: Library, change: dict[str, object], code: FailureCode
) -> None:
    library.world.publish(finished()).close()
    library.context_of = with_contract(**change)
    with load_component(runtime(library), library.loader) as loaded:
        assert loaded.restore_failure is not None
        assert loaded.restore_failure.code is code
        assert loaded.publication is None
        assert computes_as_canonical(loaded.model)
    key = library.world.context().identity.key
    assert library.world.store.cleanup(key).status is CleanupStatus.REMOVED, "no lease is left"


@pytest.mark.parametrize(("change", "code"), FAILURES, ids=["plan", "commit"])
def test_a_failed_restore_fails_where_required(
    library: Library, change: dict[str, object], code: FailureCode
) -> None:
    library.world.publish(finished()).close()
    library.context_of = with_contract(**change)
    with pytest.raises(LoadFailedError) as caught:
        load_component(runtime(library, RuntimeMode.REQUIRED), library.loader)
    assert caught.value.failure.code is code
    assert "canonical" not in library.asked


def test_a_source_that_cannot_be_read_passes_through_in_every_mode(library: Library) -> None:
    def broken(world: World) -> FinalLayoutContext:
        raise RuntimeError("no such revision")

    library.context_of = broken
    for mode in (RuntimeMode.PREFERRED, RuntimeMode.REQUIRED):
        with pytest.raises(LoadFailedError, match="no such revision"):
            load_component(runtime(library, mode), library.loader)
    assert "canonical" not in library.asked


def test_a_pipeline_mixes_leased_and_canonical_components(library: Library) -> None:
    library.world.publish(finished()).close()
    scheduler = torch.nn.Linear(1, 1)
    with load_pipeline(
        runtime(library), {"dit": library.loader}, {"scheduler": lambda: scheduler}
    ) as pipeline:
        assert pipeline.components["dit"].from_lease
        assert pipeline.components["scheduler"].model is scheduler
        assert not pipeline.components["scheduler"].from_lease
    with pytest.raises(ValueError, match="both"):
        load_pipeline(runtime(library), {"x": library.loader}, {"x": lambda: scheduler})


def test_a_pipeline_of_which_one_component_fails_keeps_no_lease(
    library: Library, tmp_path: Path
) -> None:
    library.world.publish(finished()).close()
    absent = Library(library.world)
    absent.context_of = lambda world: replace(
        world.context(), identity=other_component(world.context())
    )
    with pytest.raises(LoadFailedError):
        load_pipeline(
            runtime(library, RuntimeMode.REQUIRED),
            {"dit": library.loader, "other": absent.loader},
            {},
        )
    key = library.world.context().identity.key
    store: LocalStore = library.world.store
    assert store.cleanup(key).status is CleanupStatus.REMOVED


def other_component(context: FinalLayoutContext) -> WeightArtifactIdentity:
    component = msgspec.structs.replace(context.identity.component, name="other")
    return msgspec.structs.replace(context.identity, component=component)
