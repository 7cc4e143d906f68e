"""What each artifact of a domain was made for, and when it was last leased; survives restarts.

    <domain>/agent/<key>.json      0644, owned by the agent's uid, canonical JSON
      {"schema_version": 1, "key": "<64 hex>",
       "made_for": {"<id of a WeightNode spec entry>" or "unmanaged": <that entry's generation>}}
    <domain>/agent/<key>.used      0644, empty; its modification time is the end of the last lease

One key may serve several entries: two WeightArtifacts of one namespace with one identity. The
record ties a canary's key to its entry before the operator has fixed it, and lets a name mean its
old generation until the new one is here. A lost record costs a new publication attempt, which
finds the artifact present and writes the record again; so it is replaced by rename, without fsync.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass
from pathlib import Path

import msgspec

from weightlease.canonical import canonical_json
from weightlease.identity import is_key

RECORDS_DIRECTORY = "agent"
# Stands where an entry's id would: a pod published the key, and no entry asked for it.
UNMANAGED = "unmanaged"
SCHEMA_VERSION = 1
MAX_RECORD_BYTES = 256 * 1024


class MadeFor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One record; `made_for` maps entry ids to the generation that the artifact was made for."""

    schema_version: int
    key: str
    made_for: dict[str, int] = {}


@dataclass(frozen=True)
class _Read:
    record: MadeFor
    inode: int
    changed: int


class Records:
    """The records of one domain. Another agent may write some too while two of them overlap."""

    def __init__(self, domain: Path) -> None:
        self._folder = domain / RECORDS_DIRECTORY
        self._records: dict[str, _Read] = {}
        if self._folder.is_dir():
            for path in self._folder.glob("*.json"):
                self._look(path.stem)

    def of(self, key: str) -> dict[str, int]:
        """Entry ids and generations that `key` was made for, as its file says now."""
        self._look(key)
        read = self._records.get(key)
        return dict(read.record.made_for) if read else {}

    def older_keys(self, entry_id: str, generation: int) -> list[str]:
        """Keys made for generations of an entry before this one, newest first.

        A key of the same generation that the entry does not name is a canary's: not decided yet, or
        decided against.
        """
        found = [
            (read.record.made_for[entry_id], key)
            for key, read in list(self._records.items())
            if read.record.made_for.get(entry_id, generation) < generation
        ]
        return [key for _, key in sorted(found, reverse=True)]

    def add(self, key: str, entry_id: str, generation: int) -> None:
        """Note that `key` was made for an entry.

        Raises:
            OSError: the domain can't be written.

        """
        made_for = {**self.of(key), entry_id: generation}
        record = MadeFor(SCHEMA_VERSION, key, made_for)
        self._folder.mkdir(mode=0o755, exist_ok=True)
        target = self._folder / f"{key}.json"
        # Not by pid: two agents that overlap are often both process 1 of their containers.
        staged = self._folder / f".{key}.{secrets.token_hex(4)}"
        try:
            staged.write_bytes(canonical_json(msgspec.to_builtins(record)))
            staged.replace(target)
        finally:
            staged.unlink(missing_ok=True)
        self._look(key)

    def remove(self, key: str) -> None:
        """Forget a key whose artifact is gone."""
        self._records.pop(key, None)
        (self._folder / f"{key}.json").unlink(missing_ok=True)
        for left in (f"{key}.used", f".{key}.*"):
            for path in self._folder.glob(left):
                path.unlink(missing_ok=True)

    def note_use(self, key: str) -> None:
        """A lease of `key` has ended now. What can't be noted is not worth failing for."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o755, exist_ok=True)
            (self._folder / f"{key}.used").touch(mode=0o644)

    def last_use(self, key: str) -> float:
        """When a lease of `key` last ended, in seconds since the epoch; 0 for never."""
        with contextlib.suppress(OSError):
            return (self._folder / f"{key}.used").lstat().st_mtime
        return 0.0

    def _look(self, key: str) -> None:
        """Take over the file of `key` unless it is the one that was read last."""
        path = self._folder / f"{key}.json"
        known = self._records.get(key)
        try:
            status = path.lstat()
            if known and (known.inode, known.changed) == (status.st_ino, status.st_mtime_ns):
                return
            if (record := read_record(path)) is not None:
                self._records[key] = _Read(record, status.st_ino, status.st_mtime_ns)
                return
        except OSError:
            pass
        self._records.pop(key, None)


def read_record(path: Path) -> MadeFor | None:
    """One record; None for a file that is none, which is then written anew when needed."""
    if not is_key(path.stem) or path.is_symlink() or path.stat().st_size > MAX_RECORD_BYTES:
        return None
    try:
        record = msgspec.json.decode(path.read_bytes(), type=MadeFor, strict=True)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return record if record.key == path.stem and record.schema_version == SCHEMA_VERSION else None
