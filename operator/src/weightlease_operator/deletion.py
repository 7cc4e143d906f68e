"""What happens while a WeightArtifact is being deleted.

1. Jobs are deleted and entries removed, at once: without its entry a Job can publish nothing.
   With deletionPolicy Retain an entry that names a key stays, marked as retained, and its bytes are
   not waited for; not in a terminating namespace, whose name may be another tenant's tomorrow.
2. Per node, the deletion waits for the agent:

   node                                                                    waits
   gone, or its agent silent past the grace                                no
   its entry is still in the spec, or the agent has not read the new spec  yes
   its inventory lists bytes of the artifact that no entry names           yes; leases name pods
   everything else                                                         no

3. The finalizer goes. In a terminating namespace it goes after step 1: the agents own the
   removal then. weightlease.io/force-delete lets it go at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from weightlease.api.weight_artifact import ConditionType, DeletionPolicy
from weightlease.api.weight_node import HeldArtifact
from weightlease.names import ANNOTATION_FORCE_DELETE, FINALIZER
from weightlease.reasons import Reason
from weightlease_operator.entries import Entries, own_entries, retained_entries
from weightlease_operator.observation import AgentView, Observation
from weightlease_operator.placement import is_reporting
from weightlease_operator.plans import FinalizerAction, Plan, PlannedEvent
from weightlease_operator.status import conditions

_NAMES_SHOWN = 10


def plan_deletion(observed: Observation) -> Plan:
    metadata = observed.artifact.metadata
    if FINALIZER not in metadata.finalizers:
        return Plan()
    # A WeightNode without its Node is the garbage collector's; it may even be gone already.
    agents = [agent for name, agent in observed.agents.items() if name in observed.nodes]
    entries = _changed(observed, agents)
    jobs = tuple(job.name for job in observed.jobs if not job.deleting)
    if metadata.annotations.get(ANNOTATION_FORCE_DELETE) == "true":
        return Plan(finalizer=FinalizerAction.REMOVE, entries=entries, delete=jobs)
    held = [item for agent in agents for item in _left(observed, agent)]
    unread = [agent.name for agent in agents if _is_unread(observed, agent)]
    done = not entries and not observed.jobs
    if done and (observed.namespace_terminating or not (held or unread)):
        return Plan(finalizer=FinalizerAction.REMOVE)
    return _waiting(observed, Plan(entries=entries, delete=jobs), held, unread)


def _changed(observed: Observation, agents: Sequence[AgentView]) -> dict[str, Entries]:
    """Per node, what is left of its entries, where that differs from what the spec has."""
    spec = observed.artifact.spec
    retains = spec is not None and spec.deletion_policy is DeletionPolicy.RETAIN
    changed = {}
    for agent in agents:
        own = own_entries(observed.artifact, agent)
        left = retained_entries(own) if retains and not observed.namespace_terminating else ()
        if left != own:
            changed[agent.name] = left
    return changed


def _waiting(
    observed: Observation, plan: Plan, held: Sequence[HeldArtifact], unread: Sequence[str]
) -> Plan:
    holders = sorted({lease.holder for item in held for lease in item.leases})
    leases = sum(item.lease_count for item in held)
    if leases or holders:
        reason = Reason.LEASED
        message = f"{max(leases, len(holders))} leases are held, by {_some(holders)}"
    else:
        reason = Reason.DELETING
        waits = (
            (len(plan.entries), "entries to be removed"),
            (len(observed.jobs), "Jobs to end"),
            (len(held), "artifacts to be cleaned"),
            (len(unread), "agents to read that nothing is wanted"),
        )
        message = "waiting for " + ", ".join(f"{count} {what}" for count, what in waits if count)
    old = observed.artifact.status
    status = old.model_copy(
        update={
            "observed_generation": observed.artifact.metadata.generation,
            "progress": None,
            "conditions": conditions(
                observed,
                {
                    ConditionType.READY: (False, reason, message),
                    ConditionType.PROGRESSING: (True, reason, message),
                    ConditionType.DEGRADED: (False, reason, "nothing is wrong"),
                },
            ),
        }
    )
    before = {condition.type: condition.reason for condition in old.conditions}
    event = PlannedEvent(reason, message)
    return Plan(
        entries=plan.entries,
        delete=plan.delete,
        status=None if status.to_json() == old.to_json() else status,
        events=(event,) if before.get(ConditionType.READY) != reason else (),
        wake_at=observed.now + timedelta(seconds=observed.settings.delete_grace_seconds / 10),
    )


def _left(observed: Observation, agent: AgentView) -> list[HeldArtifact]:
    """What the node still lists of this artifact, and no other or retained entry names."""
    if _is_dropped(observed, agent):
        return []
    namespace = observed.artifact.metadata.namespace
    keys = {shard.key for shard in observed.artifact.status.shards}
    own = own_entries(observed.artifact, agent)
    keys |= {entry.key for entry in own if entry.key}
    others = {
        (entry.storage_class, entry.key)
        for entry in agent.entries
        if entry.namespace == namespace and (entry not in own or entry.retained)
    }
    return [
        item
        for item in agent.inventory
        if item.namespace == namespace
        and (item.key in keys or item.wanted_id.startswith(observed.artifact.id_prefix))
        and (item.storage_class, item.key) not in others
    ]


def _is_unread(observed: Observation, agent: AgentView) -> bool:
    return agent.observed_generation < agent.generation and not _is_dropped(observed, agent)


def _is_dropped(observed: Observation, agent: AgentView) -> bool:
    grace = timedelta(seconds=observed.settings.delete_grace_seconds)
    return not is_reporting(agent, now=observed.now, grace=grace)


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    shown = ", ".join(listed[:_NAMES_SHOWN]) or "nobody named"
    more = len(listed) - _NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
