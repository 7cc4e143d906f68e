"""A source pinned before it is read: its exact content, and a way to see that it still is that.

source.metadata   {"checkpoint_adapter": {"name", "version"}}
"""

from __future__ import annotations

from dataclasses import dataclass

from weightlease.errors import IdentityError
from weightlease.identity import SourceIdentity
from weightlease.source.fingerprint import fingerprint
from weightlease.source.model import Source, SourceFile


@dataclass(frozen=True)
class CheckpointAdapter:
    """The code that turns the files of a checkpoint into a model's names."""

    name: str
    version: str

    def __post_init__(self) -> None:
        if not self.name or not self.version:
            raise IdentityError("a checkpoint adapter needs a name and a version")


@dataclass(frozen=True)
class PreparedWeightSource:
    """The files that a model is made of, hashed; an immutable revision needs no second look."""

    identity: SourceIdentity
    source: Source
    files: tuple[SourceFile, ...]

    def require_unchanged(self) -> None:
        """Compare the files with what they were when they were hashed.

        Raises:
            SourceError: SourceChanged, or why the source cannot be reached.

        """
        if self.source.revision:
            return
        for file in self.files:
            with self.source.open(file):
                pass


def prepare(
    source: Source,
    files: tuple[SourceFile, ...],
    adapter: CheckpointAdapter,
    *,
    model_id: str,
) -> PreparedWeightSource:
    """Hash `files` of `source` now, before anybody materialises them.

    Raises:
        SourceError: SourceChanged while hashing, or why the source cannot be read.

    """
    hashed = source.hashed(files)
    digest = fingerprint(hashed)
    identity = SourceIdentity(
        model_id,
        source.revision or digest,
        digest,
        {"checkpoint_adapter": {"name": adapter.name, "version": adapter.version}},
    )
    return PreparedWeightSource(identity, source, hashed)
