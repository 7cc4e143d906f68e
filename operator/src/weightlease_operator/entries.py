"""The entries that one artifact has in each WeightNode's spec.

An agent cleans the bytes of a key that no entry names, so nothing here is ever removed for lack of
knowledge: entries go only where labels stopped matching, a component left the spec, or the artifact
is being deleted, and with deletionPolicy Retain not even then. A node that waits for its turn keeps
the entry of the content before, and goes on serving it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from weightlease.api.weight_artifact import Publisher, ShardStatus, WeightArtifactSpec
from weightlease.api.weight_node import WantedArtifact
from weightlease_operator.content import Content
from weightlease_operator.observation import AgentView, ArtifactView, JobState
from weightlease_operator.placement import NodeState
from weightlease_operator.plans import Start
from weightlease_operator.shards import NodeShard, Phase

Entries = tuple[WantedArtifact, ...]


def own_entries(artifact: ArtifactView, agent: AgentView) -> Entries:
    """The entries of this artifact that the node's spec has now, sorted by id."""
    identity = (artifact.metadata.namespace, artifact.metadata.name)
    own = (entry for entry in agent.entries if (entry.namespace, entry.name) == identity)
    return tuple(sorted(own, key=lambda entry: entry.id))


def replaced(current: Iterable[WantedArtifact], namespace: str, name: str, own: Entries) -> Entries:
    """A node's whole list with this artifact's entries replaced, others untouched."""
    others = [entry for entry in current if (entry.namespace, entry.name) != (namespace, name)]
    return tuple(sorted([*others, *own], key=lambda entry: entry.id))


def changed_entries(
    artifact: ArtifactView,
    agents: Mapping[str, AgentView],
    states: Mapping[str, NodeState],
    wanted: Mapping[str, Entries],
) -> dict[str, Entries]:
    """Per node, all of this artifact's entries where they differ from what the spec has.

    `states` covers the nodes that exist; a WeightNode without its Node is left to the garbage
    collector, which removes it as a whole.
    """
    return {
        name: wanted.get(name, ())
        for name, agent in sorted(agents.items())
        if name in states and own_entries(artifact, agent) != wanted.get(name, ())
    }


def wanted_entries(
    artifact: ArtifactView,
    spec: WeightArtifactSpec,
    content: Content,
    agents: Mapping[str, AgentView],
    shards: Mapping[str, ShardStatus],
    rows: Sequence[NodeShard],
    starts: Sequence[Start],
) -> dict[str, Entries]:
    """What each node should have; `rows` holds every matched node and component once."""
    starting = {(start.node, start.component): start.name for start in starts}
    result: dict[str, list[WantedArtifact]] = {}
    for row in rows:
        agent = agents.get(row.node)
        if agent is None:
            continue
        identifier = f"{artifact.id_prefix}{row.component}"
        current = next((entry for entry in agent.entries if entry.id == identifier), None)
        job = starting.get((row.node, row.component)) or _active_job(row)
        if job or row.phase is Phase.READY or _is_of(current, content):
            entry = _entry(artifact, spec, content, row.component, shards.get(row.component), job)
            if not (entry.key or job) and _is_of(current, content) and current is not None:
                # Known once and not now: keep what it names until a canary has fixed it again.
                entry = _kept(current, entry)
        elif current is not None:
            entry = _kept(current, _entry(artifact, spec, content, row.component, None, ""))
        else:
            continue
        result.setdefault(row.node, []).append(entry)
    return {
        node: tuple(sorted(entries, key=lambda entry: entry.id)) for node, entries in result.items()
    }


def retained_entries(own: Entries) -> Entries:
    """What stays of a deleted artifact's entries: those that name bytes."""
    return tuple(
        entry.model_copy(update={"job": "", "publishers": [], "retained": True})
        for entry in own
        if entry.key
    )


def _kept(current: WantedArtifact, new: WantedArtifact) -> WantedArtifact:
    """What it names stays; who may use it is what the spec says now."""
    granted = {name: getattr(new, name) for name in ("access_namespaces", "publishers")}
    return current.model_copy(update={"job": "", **granted})


def _active_job(row: NodeShard) -> str:
    active = row.job is not None and row.job.state is JobState.ACTIVE
    return row.job.name if active and row.job else ""


def _is_of(entry: WantedArtifact | None, content: Content) -> bool:
    # Generations start anew with each object of a name; a retained entry is of one before.
    return entry is not None and entry.generation == content.generation and not entry.retained


def _entry(
    artifact: ArtifactView,
    spec: WeightArtifactSpec,
    content: Content,
    component: str,
    shard: ShardStatus | None,
    job: str,
) -> WantedArtifact:
    return WantedArtifact(
        id=f"{artifact.id_prefix}{component}",
        namespace=artifact.metadata.namespace,
        name=artifact.metadata.name,
        component=component,
        generation=content.generation,
        storage_class=spec.storage_class,
        key=shard.key if shard else "",
        manifest_sha256=shard.manifest_sha256 if shard else "",
        job=job,
        access_namespaces=sorted(set(spec.access.namespaces)),
        publishers=sorted({_account(each, artifact) for each in spec.access.publishers}),
    )


def _account(publisher: Publisher, artifact: ArtifactView) -> str:
    namespace = publisher.namespace or artifact.metadata.namespace
    return f"{namespace}/{publisher.service_account_name}"
