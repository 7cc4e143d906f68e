"""Every name that two parts of weightlease must agree on, and the grammar of references.

reference = [namespace "/"] artifact [":" component] ["@" coordinates]
examples    minilm    team-a/minilm    wan:transformer    wan:transformer@tp1    big@pp0.tp1
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum

import msgspec

GROUP = "weightlease.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

FINALIZER = f"{GROUP}/finalizer"
TOKEN_AUDIENCE = GROUP

LABEL_ARTIFACT = f"{GROUP}/artifact"
LABEL_ARTIFACT_UID = f"{GROUP}/artifact-uid"
LABEL_SHARD = f"{GROUP}/shard"
LABEL_NODE = f"{GROUP}/node"
LABEL_GENERATION = f"{GROUP}/generation"
LABEL_ATTEMPT = f"{GROUP}/attempt"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY_OPERATOR = "weightlease-operator"

ANNOTATION_FORCE_DELETE = f"{GROUP}/force-delete"
ANNOTATION_RETRY = f"{GROUP}/retry"

SOCKET_DIRECTORY = "/run/weightlease"
SOCKET_PATH = f"{SOCKET_DIRECTORY}/agent.sock"
TOKEN_PATH = "/var/run/secrets/weightlease.io/token"  # noqa: S105 - a path, not a secret
STORE_ROOT = "/var/lib/weightlease"

CSI_DRIVER = f"csi.{GROUP}"
VOLUMES_DIRECTORY = "/run/weightlease-csi"
VOLUMES_SOCKET = f"{VOLUMES_DIRECTORY}/driver.sock"
# The one attribute of a volume: a reference to the artifact whose files it shows.
VOLUME_ATTRIBUTE_ARTIFACT = "artifact"
VOLUME_FILES = "files"

ENV_SOCKET = "WEIGHTLEASE_SOCKET"
ENV_TOKEN_FILE = "WEIGHTLEASE_TOKEN_FILE"  # noqa: S105 - a variable's name
ENV_PRODUCER_REQUEST = "WEIGHTLEASE_PRODUCER_REQUEST"

AGENT_UID = 47000
AGENT_METRICS_PORT = 9470
OPERATOR_METRICS_PORT = 9471

DEFAULT_COMPONENT = "model"


class StorageClass(StrEnum):
    """Where an artifact's bytes live on a node."""

    DISK = "disk"
    MEMORY = "memory"


class ArtifactReference(msgspec.Struct, frozen=True):
    """A parsed reference; no namespace means the caller's own, no component the only one."""

    artifact: str
    namespace: str = ""
    component: str = ""
    coordinates: str = ""

    def __str__(self) -> str:
        prefix = f"{self.namespace}/" if self.namespace else ""
        component = f":{self.component}" if self.component else ""
        coordinates = f"@{self.coordinates}" if self.coordinates else ""
        return f"{prefix}{self.artifact}{component}{coordinates}"


_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_REFERENCE = re.compile(
    rf"(?:(?P<namespace>{_LABEL})/)?"
    rf"(?P<artifact>{_LABEL}(?:\.{_LABEL})*)"
    rf"(?::(?P<component>{_LABEL}))?"
    r"(?:@(?P<coordinates>(?:tp|pp|ep|sp)\d{1,5}(?:\.(?:tp|pp|ep|sp)\d{1,5})*))?"
)


def parse_reference(text: str) -> ArtifactReference:
    """Parse `[namespace/]artifact[:component][@coordinates]`.

    Raises:
        ValueError: the text and the grammar it breaks.

    """
    match = _REFERENCE.fullmatch(text) if len(text) <= 512 else None
    if match is None:
        raise ValueError(
            f"{text[:80]!r} is not a reference; "
            "expected [namespace/]artifact[:component][@coordinates]"
        )
    return ArtifactReference(
        artifact=match["artifact"],
        namespace=match["namespace"] or "",
        component=match["component"] or "",
        coordinates=match["coordinates"] or "",
    )


def hashed_name(prefix: str, *parts: str, limit: int = 52) -> str:
    """A deterministic object name: a readable prefix and a digest of `parts`.

    At most `limit` characters; 52 leaves room for the suffixes that controllers add to the
    names of their children.
    """
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]
    return f"{prefix[: limit - 11].rstrip('-.')}-{digest}"
