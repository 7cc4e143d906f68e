"""Final layouts go through a real agent as they go into a store of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agent_process import AgentProcess
from final_layouts import World, equal, finished
from weightlease.client import AgentStore
from weightlease.manifest import TensorKind
from weightlease.producer.final_layout import FinalLayoutBF16Producer
from weightlease.reports import StoreStatus
from weightlease.runtime import (
    HostWeightRuntime,
    PublicationOutcome,
    ResolutionOutcome,
    RuntimeMode,
    RuntimePolicy,
)


@pytest.fixture
def store(agent: AgentProcess) -> Iterator[AgentStore]:
    with AgentStore(str(agent.socket)) as store:
        yield store


def test_a_model_is_published_through_the_agent_and_restored_from_its_descriptors(
    store: AgentStore, tmp_path: Path
) -> None:
    world = World(tmp_path)
    context = world.context()
    policy = RuntimePolicy(RuntimeMode.PREFERRED, allow_post_load_publish=True)
    runtime = HostWeightRuntime(lambda: store, policy)
    published = runtime.publish_after_load(
        lambda: context.identity, lambda: FinalLayoutBF16Producer(context, finished())
    )
    assert published.outcome is PublicationOutcome.PUBLISHED
    with runtime.resolve(lambda: context.identity) as warm:
        assert warm.report.outcome is ResolutionOutcome.LOCAL_HIT
        lease = warm.take()
    with lease:
        entries = {entry.name: entry for entry in lease.manifest.tensors}
        assert entries["steps"].kind is TensorKind.BUFFER
        model = world.build()
        world.restorer(context).plan_restore(model, lease).commit()
        assert lease.copied_bytes == 0
        value = torch.linspace(-1, 1, 8, dtype=torch.bfloat16).reshape(1, 8)
        assert equal(model(value), finished()(value))
        del model


def test_both_stores_publish_one_manifest(store: AgentStore, tmp_path: Path) -> None:
    world = World(tmp_path)
    context = world.context()
    through_agent = store.get_or_build(FinalLayoutBF16Producer(context, finished()))
    assert through_agent.status is StoreStatus.BUILT
    assert through_agent.lease is not None
    with through_agent.lease as one, world.publish(finished(), context) as other:
        assert one.manifest.canonical_bytes == other.manifest.canonical_bytes
