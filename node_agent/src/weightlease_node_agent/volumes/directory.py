"""Where volumes lie, and the record that lets a new agent serve them again.

    <volumes>/                 0700, the agent's, on a filesystem that a reboot empties
      driver.sock              where the CSI driver asks
      <handle>/                handle: the first 32 hex digits of sha256(volume id)
        volume.json            0600, canonical JSON of VolumeRecord; the volume exists while it does
        pod/                   what the pod sees, read-only
          agent.sock           bound by the agent that serves now
          files/  .content/    only with an artifact (`tree`)

What a crash left without its record is removed at the next start.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path

import msgspec
import structlog

from weightlease.canonical import canonical_plain
from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.filesystem import read_bounded
from weightlease.identity import is_key
from weightlease.names import StorageClass

log = structlog.get_logger(__name__)
SCHEMA_VERSION = 1
SOCKET_NAME = "agent.sock"
_RECORD_NAME = "volume.json"
_POD_NAME = "pod"
_HANDLE = re.compile(r"[0-9a-f]{32}")
_MAX_RECORD_BYTES = 16 * 1024


class VolumeLease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which artifact a volume holds, and the lease file that says so; `assets` if it has some."""

    storage_class: StorageClass
    namespace: str
    key: str
    lease_id: str
    assets: bool


class VolumeRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A volume and the pod that it is for; `artifact` as the pod's author wrote it."""

    schema_version: int
    volume_id: str
    target: str
    namespace: str
    pod: str
    pod_uid: str
    service_account: str
    artifact: str = ""
    lease: VolumeLease | None = None

    @property
    def handle(self) -> str:
        return handle_of(self.volume_id)


def handle_of(volume_id: str) -> str:
    """A volume's folder: of fixed length, so that its socket's path fits, and safe as a name."""
    return hashlib.sha256(volume_id.encode()).hexdigest()[:32]


class VolumeDirectory:
    """The folders of all volumes; every method blocks."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def pod_folder(self, handle: str) -> Path:
        """What the pod of this volume sees."""
        return self.root / handle / _POD_NAME

    def socket(self, handle: str) -> Path:
        """Where the pod connects."""
        return self.pod_folder(handle) / SOCKET_NAME

    def prepare(self, handle: str) -> Path:
        """A new, empty pod folder; whatever a failed attempt left there goes.

        Raises:
            OSError: the folder can't be written.

        """
        self.remove(handle)
        folder = self.pod_folder(handle)
        folder.parent.mkdir(mode=0o755)
        folder.mkdir(mode=0o755)
        return folder

    def commit(self, record: VolumeRecord) -> None:
        """Write the record, and so make the volume exist.

        Raises:
            OSError: the record can't be written.

        """
        folder = self.root / record.handle
        staged = folder / f".{_RECORD_NAME}"
        staged.write_bytes(canonical_plain(record))
        staged.chmod(0o600)
        staged.replace(folder / _RECORD_NAME)

    def retract(self, handle: str) -> None:
        """Remove the record: from here on the volume does not exist."""
        (self.root / handle / _RECORD_NAME).unlink(missing_ok=True)

    def remove(self, handle: str) -> None:
        """Remove everything, the record first; what is gone is no error."""
        self.retract(handle)
        folder = self.root / handle
        if folder.exists():
            shutil.rmtree(folder)

    def load(self) -> list[VolumeRecord]:
        """Every volume with a sound record; the folders of all others are removed."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Whoever made it, nobody else may come near the sockets in it.
        self.root.chmod(0o700)
        found = []
        for path in sorted(self.root.iterdir()):
            if _HANDLE.fullmatch(path.name) is None or path.is_symlink() or not path.is_dir():
                continue
            record = read_volume_record(path / _RECORD_NAME)
            if record is not None and record.handle == path.name:
                found.append(record)
                continue
            log.warning("volume without a record removed", handle=path.name)
            self.remove(path.name)
        return found


def read_volume_record(path: Path) -> VolumeRecord | None:
    """One record; None for a file that is none."""
    try:
        data = read_bounded(os.fspath(path), _MAX_RECORD_BYTES, trusted=False)
        record = msgspec.json.decode(data, type=VolumeRecord, strict=True)
    except (WeightLeaseError, OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if record.schema_version != SCHEMA_VERSION:
        return None
    lease = record.lease
    return record if lease is None or (is_key(lease.key) and lease.lease_id) else None


def unusable(message: str) -> WeightLeaseError:
    """A request for a volume that can't be."""
    return WeightLeaseError.of(Stage.ACCESS, FailureCode.INVALID_CONFIG, message)
