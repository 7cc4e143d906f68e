"""Opening files below a root without ever leaving it, whatever links point where.

Links are followed by hand, one part at a time, from directory descriptors: `..` stops at the root,
an absolute target counts only if its parts begin with the root's own path, and nothing but regular
files and directories is opened. Containment is by path parts, never by string prefix.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence

MAX_LINKS = 40
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Refused(Exception):
    """Why a path is not opened; `problem` is the text for people."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class Beneath:
    """A root directory, held open; `parts` of its methods are relative to it."""

    def __init__(self, root: str) -> None:
        """Open `root`; raises OSError."""
        self._fd = -1
        self._parts = [part for part in os.path.realpath(root).split("/") if part]
        self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open(self, parts: Sequence[str]) -> int:
        """A descriptor of the regular file or directory at `parts`.

        Raises:
            Refused: outside the root, too many links, special file, missing, or not permitted.

        """
        pending = list(reversed(parts))
        opened = [os.dup(self._fd)]
        links = 0
        try:
            while pending:
                part = pending.pop()
                if part == "..":
                    if len(opened) == 1:
                        raise Refused("a link leaves the source's root")
                    os.close(opened.pop())
                    continue
                target = self._step(opened, part)
                if target is not None:
                    links += 1
                    if links > MAX_LINKS:
                        raise Refused("too many links")
                    self._follow(target, opened, pending)
            return opened.pop()
        except OSError as error:
            raise Refused(_problem(error)) from error
        finally:
            for fd in opened:
                os.close(fd)

    def close(self) -> None:
        """Let go of the root."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        # Opened by a producer that nobody ran, for example.
        self.close()

    def _step(self, opened: list[int], part: str) -> str | None:
        """Open `part` below the last directory, or return the target of the link it is."""
        mode = os.stat(part, dir_fd=opened[-1], follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            return os.readlink(part, dir_fd=opened[-1])
        _require_plain(mode)
        fd = os.open(part, _FLAGS, dir_fd=opened[-1])
        opened.append(fd)
        # what was looked at and what was opened may differ
        _require_plain(os.fstat(fd).st_mode)
        return None

    def _follow(self, target: str, opened: list[int], pending: list[str]) -> None:
        parts = [part for part in target.split("/") if part not in {"", "."}]
        if target.startswith("/"):
            if parts[: len(self._parts)] != self._parts:
                raise Refused("a link leaves the source's root")
            parts = parts[len(self._parts) :]
            while len(opened) > 1:
                os.close(opened.pop())
        pending.extend(reversed(parts))


def _require_plain(mode: int) -> None:
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise Refused("neither a regular file nor a folder")


_PROBLEMS = {
    errno.ENOENT: "missing, or a link to nothing",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENOTDIR: "a part of the path is not a folder",
    errno.ELOOP: "changed into a link while it was opened",
}


def _problem(error: OSError) -> str:
    return _PROBLEMS.get(error.errno or 0, error.strerror or str(error))
