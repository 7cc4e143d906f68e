"""Reading a source's file anywhere: exactly what is asked for, or the source's error."""

from __future__ import annotations

import os

from weightlease.reasons import Reason
from weightlease.source.errors import SourceError
from weightlease.source.model import SourceFile


def read_at(fd: int, file: SourceFile, offset: int, size: int) -> bytearray:
    """Exactly `size` bytes of `fd` from byte `offset` on.

    Raises:
        SourceError: SourceChanged where the file ends before, SourceUnavailable on an I/O error.

    """
    data = bytearray(size)
    view = memoryview(data)
    done = 0
    while done < size:
        try:
            count = os.preadv(fd, [view[done:]], offset + done)
        except OSError as error:
            raise SourceError(
                Reason.SOURCE_UNAVAILABLE, f"{file.path!r}: {error.strerror or error}"
            ) from error
        if count == 0:
            raise SourceError(
                Reason.SOURCE_CHANGED,
                f"{file.path!r} ends at byte {offset + done}, before the {size} bytes at {offset}",
            )
        done += count
    return data
