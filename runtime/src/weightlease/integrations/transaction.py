"""The loading transaction of one component: resolve, plan, commit, or the canonical loader.

    resolve ─► lease ─► plan ─► commit ─► model over the lease      transfer, then close
       │                 └────────┴─ failed: as the mode says, canonical with a fresh model
       ├─► fallback ─► canonical loader ─► publish_after_load, which its policy gates
       └─► failed ─► LoadFailedError

The canonical loader always builds a model of its own, so a model that a commit spoiled is never
used again. What it raises passes through: a broken source is nobody's cache miss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Self

from weightlease.errors import Failure, WeightLeaseError
from weightlease.identity import WeightArtifactIdentity
from weightlease.lease import WeightLease
from weightlease.restore.context import FinalLayoutContext
from weightlease.restore.restorer import FinalLayoutTensorRestorer
from weightlease.runtime.decisions import RestoreFallback, after_restore_failure
from weightlease.runtime.host_runtime import HostWeightRuntime
from weightlease.runtime.report import PublicationReport, ResolutionOutcome, ResolutionReport
from weightlease.runtime.resolution import Resolution
from weightlease.store.protocol import PhasedProducer

if TYPE_CHECKING:
    import torch


class LoadFailedError(WeightLeaseError):
    """A required lease could not be had, or a failure that no mode forgives."""


@dataclass(frozen=True)
class ComponentLoader:
    """What a model library hands over for one component; all of it is called only when needed.

    `context` fixes source and identity, `skeleton` builds the architecture on `meta`, `canonical`
    loads a finished CPU model, `producer` makes a publication of one.
    """

    context: Callable[[], FinalLayoutContext]
    skeleton: Callable[[], torch.nn.Module]
    canonical: Callable[[], torch.nn.Module]
    producer: Callable[[FinalLayoutContext, torch.nn.Module], PhasedProducer]
    restorer: Callable[[FinalLayoutContext], FinalLayoutTensorRestorer] = FinalLayoutTensorRestorer


@dataclass
class LoadedComponent:
    """A model, and how it came to be; a context manager that closes the lease after transfers."""

    model: torch.nn.Module
    resolution: ResolutionReport
    lease: WeightLease | None = None
    restore_failure: Failure | None = None
    publication: PublicationReport | None = None

    @property
    def from_lease(self) -> bool:
        """Whether the weights are a lease's, and not a canonical load's."""
        return self.lease is not None

    def close(self) -> None:
        """Give the lease back; tensors that still look at it keep its memory. Idempotent."""
        if self.lease is not None:
            self.lease.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


@dataclass
class LoadedPipeline:
    """Components by name; closes every lease."""

    components: dict[str, LoadedComponent] = field(default_factory=dict)

    def close(self) -> None:
        """Give every lease back; idempotent."""
        for component in self.components.values():
            component.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def load_component(runtime: HostWeightRuntime, loader: ComponentLoader) -> LoadedComponent:
    """Load one component by `runtime`'s policy.

    Raises:
        LoadFailedError: the policy permits no canonical load.
        Exception: what the canonical loader raises.

    """
    context = cache(loader.context)

    def identity() -> WeightArtifactIdentity:
        return context().identity

    with runtime.resolve(identity) as resolution:
        if resolution.report.outcome is ResolutionOutcome.FAILED:
            raise _failed(resolution.report.failure)
        restored = _restored(resolution, loader, context) if resolution.leased else None
    failure = restored if isinstance(restored, Failure) else None
    if isinstance(restored, LoadedComponent):
        return restored
    if failure is not None:
        fallback = after_restore_failure(runtime.policy.mode, failure)
        if fallback is RestoreFallback.FAIL_STARTUP:
            raise _failed(failure)
    model = loader.canonical()
    # After a failed restore the artifact is there; publishing again would change nothing.
    publication = None
    if failure is None:
        publication = runtime.publish_after_load(
            identity, lambda: loader.producer(context(), model)
        )
    return LoadedComponent(model, resolution.report, None, failure, publication)


def load_pipeline(
    runtime: HostWeightRuntime,
    leased: Mapping[str, ComponentLoader],
    canonical: Mapping[str, Callable[[], torch.nn.Module]],
) -> LoadedPipeline:
    """Load `leased` components by policy and the others canonically; all of them or none.

    Raises:
        LoadFailedError: as `load_component`; leases that were taken are closed.
        ValueError: one name in both.

    """
    both = sorted(leased.keys() & canonical.keys())
    if both:
        raise ValueError(f"components {both} are both leased and canonical")
    models = {name: load() for name, load in canonical.items()}
    pipeline = LoadedPipeline()
    try:
        for name, loader in leased.items():
            pipeline.components[name] = load_component(runtime, loader)
    except BaseException:
        pipeline.close()
        raise
    untouched = ResolutionReport("", ResolutionOutcome.CANONICAL_DIRECT, (), 0.0)
    for name, model in models.items():
        pipeline.components[name] = LoadedComponent(model, untouched)
    return pipeline


def _restored(
    resolution: Resolution,
    loader: ComponentLoader,
    context: Callable[[], FinalLayoutContext],
) -> LoadedComponent | Failure:
    lease = resolution.take()
    try:
        model = loader.skeleton()
        loader.restorer(context()).plan_restore(model, lease).commit()
    except WeightLeaseError as error:
        lease.close()
        return error.failure
    except BaseException:
        lease.close()
        raise
    return LoadedComponent(model, resolution.report, lease)


def _failed(failure: Failure | None) -> WeightLeaseError:
    if failure is None:
        raise AssertionError("a resolution failed without saying why")
    return LoadFailedError(failure)
