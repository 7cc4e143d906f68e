"""The least that a lease could cost: a process that answers one byte with one descriptor.

    python echo.py SOCKET FILE

Serves one connection; each byte is answered by a byte that carries a descriptor of FILE.
"""

from __future__ import annotations

import os
import socket
import sys


def main() -> None:
    """Serve until the peer closes."""
    path, file = sys.argv[1:3]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(1)
        print("ready", flush=True)
        connection, _ = listener.accept()
        with connection:
            while connection.recv(1):
                fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
                socket.send_fds(connection, [b"."], [fd])
                os.close(fd)


if __name__ == "__main__":
    main()
