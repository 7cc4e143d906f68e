"""Where everything of a domain lies on disk.

    <root>/                              0700, like every directory of the store
      domain.json                        who this domain is, written once
      domain-policy.json                 its limits, written once
      locks/                             outside of everything that is ever replaced
        domain-init.lock                 one initialiser at a time
        domain-build.lock                one builder at all, where admission is serialized
        <key>.build.lock                 one builder per key
        <key>.artifact.lock              shared by leases; exclusive for publication and cleanup
      artifacts/<key>/                   0555; with the sticky bit: invalidated
        READY.json manifest.json *.safetensors        0444 and nothing else
      tmp/<key>.<pid>.<uuid>/            staging of an artifact, invisible to readers
      tmp/<key>.<pid>.<uuid>.assets/     staging of its assets
      quarantine/<key>.<reason>.<uuid>/
      deny/<key>.json                    why lookups of this key are refused until it is rebuilt
      assets/<key>/<sha256>              0444 in 0555; the artifact's files without tensors
      leases/<lease_id>.json             who holds what (weightlease.lease_record)

All but the last two is the Host Weight Runtime's v1 domain, which knows and ignores them. Lock
order: domain build lock, build lock, artifact lock.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from enum import StrEnum

from weightlease.lease_record import LEASES_DIRECTORY
from weightlease.manifest import MANIFEST_FILE, READY_FILE

DOMAIN_FILE = "domain.json"
POLICY_FILE = "domain-policy.json"

STAGING_MODE = 0o700
# Sticky while it travels: a staging directory found under artifacts/ is not an artifact yet.
SEALED_MODE = 0o1755
PUBLISHED_MODE = 0o555


class QuarantineReason(StrEnum):
    """Why a directory was moved to quarantine; part of its name there."""

    VALIDATION_FAILURE = "validation_failure"
    CLEANUP = "cleanup"
    PUBLICATION_FAILURE = "publication_failure"
    IDENTITY_COLLISION = "identity-collision"


@dataclass(frozen=True)
class Paths:
    """The paths of one domain; pure, touches nothing."""

    root: str

    @property
    def locks(self) -> str:
        return f"{self.root}/locks"

    @property
    def artifacts(self) -> str:
        return f"{self.root}/artifacts"

    @property
    def staging(self) -> str:
        return f"{self.root}/tmp"  # noqa: S108 - a name below our root

    @property
    def quarantine(self) -> str:
        return f"{self.root}/quarantine"

    @property
    def deny(self) -> str:
        return f"{self.root}/deny"

    @property
    def assets(self) -> str:
        return f"{self.root}/assets"

    @property
    def leases(self) -> str:
        return f"{self.root}/{LEASES_DIRECTORY}"

    @property
    def init_lock(self) -> str:
        return f"{self.locks}/domain-init.lock"

    @property
    def domain_build_lock(self) -> str:
        return f"{self.locks}/domain-build.lock"

    @property
    def directories(self) -> tuple[str, ...]:
        """Every directory of a domain, its root first."""
        return (
            self.root,
            self.locks,
            self.artifacts,
            self.staging,
            self.quarantine,
            self.deny,
            self.assets,
            self.leases,
        )

    def build_lock(self, key: str) -> str:
        return f"{self.locks}/{key}.build.lock"

    def artifact_lock(self, key: str) -> str:
        return f"{self.locks}/{key}.artifact.lock"

    def artifact(self, key: str) -> str:
        return f"{self.artifacts}/{key}"

    def payload(self, key: str, name: str) -> str:
        return f"{self.artifacts}/{key}/{name}"

    def manifest(self, key: str) -> str:
        return self.payload(key, MANIFEST_FILE)

    def ready(self, key: str) -> str:
        return self.payload(key, READY_FILE)

    def denial(self, key: str) -> str:
        return f"{self.deny}/{key}.json"

    def asset_tree(self, key: str) -> str:
        return f"{self.assets}/{key}"

    def asset(self, key: str, sha256: str) -> str:
        return f"{self.assets}/{key}/{sha256}"

    def new_staging(self, key: str) -> str:
        """A staging directory's path that no other writer can have."""
        return f"{self.staging}/{key}.{os.getpid()}.{uuid.uuid4().hex}"

    def new_quarantine(self, key: str, reason: QuarantineReason) -> str:
        """A quarantine entry's path that no other move can have."""
        return f"{self.quarantine}/{key}.{reason}.{uuid.uuid4().hex}"
