"""A local Hub with one repository, and sources on it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from hubserver import HubServer, Repository, load_repository
from weightlease.source.hub import HubAccess, HubSource

NAME = "org/small"
TOKEN = "hf_a_secret_that_must_not_travel"


@dataclass
class HubSetup:
    """One server, one repository, and sources on it that are closed at the end."""

    server: HubServer
    repository: Repository
    scratch: Path
    stack: ExitStack = field(default_factory=ExitStack)

    def source(self, *, token: str = "", revision: str = "", repo: str = NAME) -> HubSource:
        """A source that never asks twice and waits at most a second for a byte."""
        access = HubAccess(self.server.endpoint, token, retries=0, timeout=1.0)
        return self.stack.enter_context(
            HubSource(
                repo,
                revision or self.repository.commit,
                scratch=str(self.scratch),
                access=access,
            )
        )


def serve(folder: Path, scratch: Path, *, token: str = "", gated: bool = False) -> HubSetup:
    repository = load_repository(NAME, str(folder), token=token, gated=gated)
    server = HubServer([repository], separate_storage=True, page_size=2)
    scratch.mkdir(exist_ok=True)
    return HubSetup(server, repository, scratch)
