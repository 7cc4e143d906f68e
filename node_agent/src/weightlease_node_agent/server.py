"""The listening socket: placed by rename, removed only while it is still ours.

Two agents may overlap while a DaemonSet surges. The newer one renames its socket over the older
one's, so that a path always leads to a listening agent; the older one finds another inode there and
leaves it alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)
_BACKLOG = 1024
_ACCEPTS_PER_TURN = 64
_PAUSE_SECONDS = 0.1


class SocketServer:
    """Accepts connections and hands each to `on_connection`."""

    def __init__(self, path: Path, on_connection: Callable[[socket.socket], None]) -> None:
        self._path = path
        self._on_connection = on_connection
        self._socket: socket.socket | None = None
        self._inode = (0, 0)

    @property
    def listening(self) -> bool:
        """Whether peers can connect, and find this agent at the path."""
        return self._socket is not None and self._is_ours()

    def start(self) -> None:
        """Bind, listen and appear at the path.

        Raises:
            OSError: the folder can't be written, a folder that is not empty stands at the path, or
                the path is too long for a socket (107 bytes).

        """
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _make_way(self._path)
        # Not by pid: two agents that overlap are often both process 1 of their containers.
        staged = self._path.parent / f".{self._path.name}.{secrets.token_hex(4)}"
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            server.bind(str(staged))
            staged.chmod(0o666)
            server.listen(_BACKLOG)
            server.setblocking(False)  # noqa: FBT003 - the socket's own signature
            status = staged.stat()
            self._inode = (status.st_dev, status.st_ino)
            staged.replace(self._path)
        except BaseException:
            server.close()
            staged.unlink(missing_ok=True)
            raise
        self._socket = server
        asyncio.get_running_loop().add_reader(server, self._accept)
        log.info("listening", socket=str(self._path))

    def stop(self) -> None:
        """Stop accepting; remove the path if it is still ours."""
        if self._socket is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        if self._is_ours():
            self._path.unlink(missing_ok=True)
        self._socket.close()
        self._socket = None

    def _is_ours(self) -> bool:
        try:
            status = self._path.lstat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._inode

    def _accept(self) -> None:
        if self._socket is None:
            return
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            self._on_connection(connection)

    def _pause(self, error: OSError) -> None:
        # Out of descriptors: the listener stays readable, so without a pause the loop would spin.
        log.error("accept failed", error=error.strerror)
        loop = asyncio.get_running_loop()
        if self._socket is not None:
            loop.remove_reader(self._socket)
        loop.call_later(_PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                asyncio.get_running_loop().add_reader(self._socket, self._accept)


def _make_way(path: Path) -> None:
    """Remove an empty folder: kubelet makes one when a container mounts a socket that is not there.

    Raises:
        OSError: it is not empty, or not ours to remove.

    """
    if path.is_symlink() or not path.is_dir():
        return
    try:
        path.rmdir()
    except OSError as error:
        raise OSError(
            error.errno,
            f"a folder stands where the socket belongs and can't be removed ({error.strerror}); "
            "mount the folder of the socket into pods, never the socket, and remove it",
            str(path),
        ) from error
    log.warning("an empty folder stood where the socket belongs", path=str(path))
