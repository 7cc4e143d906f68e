"""The lease file: who holds which artifact of an agent's domain.

    <domain>/leases/<lease_id>.json      0444, owned by the agent's uid, canonical JSON
      {"schema_version": 1,
       "lease_id": "<32 hex>",
       "key": "<64 hex>",
       "holder": {"kind": "pod" | "uid",
                  "namespace", "pod", "pod_uid", "node", "uid", "pid"},
       "since": "2026-01-31T12:00:00Z",
       "volume": "<32 hex>"}               only where a volume holds it

The holder keeps the shared flock of one open description of this file, handed over by SCM_RIGHTS
and plain close, never by LOCK_UN (that would unlock every copy). The lease ends when the last copy
of that descriptor closes. Whoever can take the exclusive lock may remove the file.

A volume's lease has no holder that could keep a lock: the file itself is the lease, until the agent
that ends the volume removes it.
"""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

from weightlease.canonical import canonical_plain
from weightlease.errors import ManifestError
from weightlease.identity import is_key

LEASES_DIRECTORY = "leases"
SCHEMA_VERSION = 1
MAX_RECORD_BYTES = 16 * 1024
_LEASE_ID = re.compile(r"[0-9a-f]{32}")


class HolderKind(StrEnum):
    """How the holder was identified."""

    POD = "pod"
    UID = "uid"


class Holder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The peer that asked for the lease, as the agent authenticated it."""

    kind: HolderKind
    namespace: str = ""
    pod: str = ""
    pod_uid: str = ""
    node: str = ""
    uid: int = -1
    pid: int = 0

    def __str__(self) -> str:
        if self.kind is HolderKind.POD:
            return f"{self.namespace}/{self.pod}"
        return f"uid {self.uid} pid {self.pid}"


class LeaseRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One lease; `since` is RFC 3339 in UTC."""

    schema_version: int
    lease_id: str
    key: str
    holder: Holder
    since: str
    volume: str = ""

    @property
    def file_name(self) -> str:
        """The record's name below `leases/`."""
        return f"{self.lease_id}.json"

    @property
    def canonical_bytes(self) -> bytes:
        """What the lease file holds."""
        return canonical_plain(self)


def parse_lease_record(data: bytes) -> LeaseRecord:
    """Decode and check one lease file.

    Raises:
        ManifestError: bytes that are not exactly one valid record.

    """
    try:
        record = msgspec.json.decode(data, type=LeaseRecord, strict=True)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestError(f"lease file is malformed: {error}") from error
    if record.schema_version != SCHEMA_VERSION:
        raise ManifestError(f"lease file schema_version {record.schema_version} is unknown")
    if _LEASE_ID.fullmatch(record.lease_id) is None or not is_key(record.key):
        raise ManifestError("lease file has a malformed lease_id or key")
    if record.volume and _LEASE_ID.fullmatch(record.volume) is None:
        raise ManifestError("lease file has a malformed volume")
    return record
