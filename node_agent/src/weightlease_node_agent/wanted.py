"""What this node should hold: the latest WeightNode spec, and names resolved against it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from weightlease.api.weight_node import WantedArtifact, WeightNode
from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.names import ArtifactReference


@dataclass(frozen=True)
class Spec:
    """One state of the spec.

    `seen` once a WeightNode of this node has been read in this process; `synced` while the watch
    is known to be current. Nothing is removed unless both hold.
    """

    entries: tuple[WantedArtifact, ...] = ()
    generation: int = 0
    seen: bool = False
    synced: bool = False

    @property
    def may_remove(self) -> bool:
        """Whether absence from the spec means that an artifact is unwanted."""
        return self.seen and self.synced


@dataclass
class Wanted:
    """The current spec; readers take `spec` once and work on that."""

    spec: Spec = field(default_factory=Spec)
    on_change: Callable[[], None] = lambda: None

    def observe(self, node: WeightNode | None) -> None:
        """Take over a current WeightNode; None means that there is none yet, or no longer."""
        if node is None:
            self._replace(Spec(synced=True))
        else:
            entries = tuple(node.spec.artifacts)
            self._replace(Spec(entries, node.metadata.generation, seen=True, synced=True))

    def lose(self) -> None:
        """The watch broke: the entries stay in force, but no longer prove absence."""
        self._replace(replace(self.spec, synced=False))

    def _replace(self, spec: Spec) -> None:
        changed = spec != self.spec
        self.spec = spec
        if changed:
            self.on_change()


def resolve(entries: Iterable[WantedArtifact], reference: ArtifactReference) -> WantedArtifact:
    """The one entry that a reference with a namespace names.

    Raises:
        WeightLeaseError: local_miss (retryable) for none, invalid_config for several.

    """
    found = [
        entry
        for entry in entries
        if entry.namespace == reference.namespace
        and entry.name == reference.artifact
        and reference.component in {"", entry.component}
        and reference.coordinates in {"", entry.coordinates}
    ]
    if not found:
        raise missing(f"{reference} is not wanted on this node")
    if len(found) > 1:
        choices = ", ".join(sorted(entry.id for entry in found)[:5])
        raise WeightLeaseError.of(
            Stage.LOOKUP,
            FailureCode.INVALID_CONFIG,
            f"{reference} names {len(found)} shards; choose one of {choices}",
        )
    return found[0]


def missing(message: str) -> WeightLeaseError:
    """A local_miss; what is not here yet may come."""
    return WeightLeaseError.of(Stage.LOOKUP, FailureCode.LOCAL_MISS, message, retryable=True)
