"""The lease files of a domain: who holds what, with the kernel's lock as the truth.

The format is `weightlease.lease_record`'s. A file says who, its shared flock says whether still. A
lease means nothing beyond the boot of the machine, so the file is written atomically but not
fsynced; one that a power cut left empty is reported and can be removed.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from weightlease import filesystem
from weightlease.errors import ManifestError
from weightlease.lease_record import MAX_RECORD_BYTES, LeaseRecord, parse_lease_record
from weightlease.locks import Deadline, lock_descriptor, lock_until
from weightlease.store.layout import Paths

_SUFFIX = ".json"
_OPEN_SECONDS = 2.0


class LeaseDirectory:
    """`leases/` of one domain; safe to use from several processes."""

    def __init__(self, domain_root: str | os.PathLike[str]) -> None:
        self._directory = Paths(os.fspath(domain_root)).leases

    def grant(self, record: LeaseRecord) -> None:
        """Write the lease file of `record`. It is active once somebody locks it.

        Raises:
            FileExistsError: the lease id is taken.
            OSError: the file could not be written.

        """
        path = f"{self._directory}/{record.file_name}"
        temporary = f"{self._directory}/.{record.lease_id}.tmp"
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(temporary, flags, 0o600)
        try:
            filesystem.write_all(fd, record.canonical_bytes)
            os.fchmod(fd, filesystem.READ_ONLY_FILE)
            os.link(temporary, path)
        finally:
            os.close(fd)
            os.unlink(temporary)

    def open_locked(
        self,
        record: LeaseRecord,
        root: str | os.PathLike[str] | None = None,
        *,
        seconds: float = _OPEN_SECONDS,
    ) -> int:
        """A fresh read-only descriptor of the lease file, holding its shared lock.

        `root` is another mount of the domain's root, such as a read-only one. Closing the last copy
        of the descriptor ends the lease. A prober's lock is waited for at most `seconds`.

        Raises:
            FileNotFoundError: the lease was removed.
            OSError: the file cannot be opened or locked; EBUSY where it is locked by a prober.

        """
        directory = self._directory if root is None else Paths(os.fspath(root)).leases
        fd = filesystem.open_file(f"{directory}/{record.file_name}")
        # Only a prober that is about to let go, or to remove the file, can be in the way.
        held = lock_until(fd, exclusive=False, deadline=Deadline(seconds))
        if held and os.fstat(fd).st_nlink:
            return fd
        os.close(fd)
        if held:
            raise FileNotFoundError(errno.ENOENT, "lease was removed", record.lease_id)
        raise OSError(errno.EBUSY, "lease file is locked exclusively", record.lease_id)

    def scan(self) -> list[tuple[LeaseRecord, bool]]:
        """Every readable lease, and whether somebody still holds it; a volume always does."""
        found = [(self._read(name), name) for name in self._names()]
        return [
            (record, bool(record.volume) or self._is_active(name))
            for record, name in found
            if record is not None
        ]

    def malformed(self) -> list[str]:
        """Names of files that are no lease record; `remove_if_ended` takes them by their stem."""
        return [name for name in self._names() if self._read(name) is None]

    def holders(self, key: str) -> tuple[LeaseRecord, ...]:
        """The active leases of artifact `key`."""
        return tuple(record for record, active in self.scan() if active and record.key == key)

    def remove_if_ended(self, lease_id: str) -> bool:
        """Remove the lease file if nobody holds it; True when it is gone. A volume's stays."""
        path = f"{self._directory}/{os.path.basename(lease_id)}{_SUFFIX}"
        try:
            fd = filesystem.open_file(path)
        except FileNotFoundError:
            return True
        try:
            if not lock_descriptor(fd, exclusive=True):
                return False
            record = self._read(os.path.basename(path))
            if record is not None and record.volume:
                return False
            # under the lock, so that whoever waits for it sees that the file has no link left
            with suppress(FileNotFoundError):
                os.unlink(path)
            return True
        finally:
            os.close(fd)

    def remove_volume(self, lease_id: str) -> None:
        """End a volume's lease; one that is gone is no error."""
        with suppress(FileNotFoundError):
            os.unlink(f"{self._directory}/{os.path.basename(lease_id)}{_SUFFIX}")

    def _names(self) -> list[str]:
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        return sorted(name for name in names if name.endswith(_SUFFIX) and name[0] != ".")

    def _read(self, name: str) -> LeaseRecord | None:
        path = f"{self._directory}/{name}"
        try:
            data = filesystem.read_bounded(path, MAX_RECORD_BYTES, trusted=True)
            record = parse_lease_record(data)
        except (ManifestError, OSError):
            return None
        return record if record.file_name == name else None

    def _is_active(self, name: str) -> bool:
        try:
            fd = filesystem.open_file(f"{self._directory}/{name}")
        except OSError:
            return False
        try:
            return not lock_descriptor(fd, exclusive=True)
        finally:
            os.close(fd)
