"""What a runtime may do: the mode, the gates of producers, the remote backing, the patience."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from weightlease.policy import Validation, WaitPolicy


class RuntimeMode(StrEnum):
    """How much a loader depends on a lease."""

    DISABLED = "disabled"
    PREFERRED = "preferred"
    REQUIRED = "required"


class RemoteOnMiss(StrEnum):
    """Whether a local miss asks a remote backing; no backing is implemented yet."""

    DISABLED = "disabled"
    TRY = "try"
    REQUIRE = "require"


@dataclass(frozen=True)
class RuntimePolicy:
    """One runtime's policy.

    `allow_local_build` gates producers before the load, `allow_post_load_publish` gates
    `publish_after_load`; neither says anything about the other.
    """

    mode: RuntimeMode = RuntimeMode.DISABLED
    validation: Validation = Validation.MANIFEST_AND_METADATA
    allow_local_build: bool = True
    allow_post_load_publish: bool = False
    remote: RemoteOnMiss = RemoteOnMiss.DISABLED
    wait: WaitPolicy = field(default_factory=WaitPolicy)
