"""How a client reaches its agent: frozen, read from the environment once, when a store is made."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Self

from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.names import AGENT_UID, ENV_SOCKET, ENV_TOKEN_FILE, SOCKET_PATH, TOKEN_PATH
from weightlease.wire import MAX_TOKEN_BYTES


@dataclass(frozen=True)
class ClientSettings:
    """Where the agent listens and how long it may take; times in seconds.

    `trusted_uids` are the users whom a socket's other end may belong to: whoever else listens there
    could hand out any bytes. An empty `token_file` sends no token (bare hosts).
    """

    socket_path: str = SOCKET_PATH
    token_file: str = ""
    timeout: float = 30.0
    # Hashing or syncing an artifact takes as long as it takes; this only ends a hang.
    work_timeout: float = 3600.0
    trusted_uids: frozenset[int] = field(
        default_factory=lambda: frozenset({AGENT_UID, 0, os.geteuid()})
    )

    def __post_init__(self) -> None:
        for name in ("timeout", "work_timeout"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise _invalid(f"{name} {value} must be finite and positive")
        if not self.socket_path:
            raise _invalid("socket_path must not be empty")

    @classmethod
    def from_environment(
        cls, socket_path: str | None = None, token_file: str | None = None, timeout: float = 30.0
    ) -> Self:
        """Arguments first, then the environment (`names.ENV_SOCKET`), then the paths in a pod.

        The default token file is used only where it exists.
        """
        if token_file is None:
            token_file = os.environ.get(ENV_TOKEN_FILE)
        if token_file is None:
            token_file = TOKEN_PATH if os.path.exists(TOKEN_PATH) else ""
        return cls(
            socket_path=socket_path or os.environ.get(ENV_SOCKET) or SOCKET_PATH,
            token_file=token_file,
            timeout=timeout,
        )

    def read_token(self) -> str:
        """The token as it is now; projected tokens rotate, so each hello reads it again.

        Raises:
            WeightLeaseError: the file cannot be read or is no token.

        """
        if not self.token_file:
            return ""
        try:
            with open(self.token_file, "rb") as file:
                data = file.read(MAX_TOKEN_BYTES + 1)
            if len(data) > MAX_TOKEN_BYTES:
                raise _invalid(f"token file {self.token_file} exceeds {MAX_TOKEN_BYTES} bytes")
            return data.decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise _invalid(
                f"token file {self.token_file} is unreadable ({error}); mount a projected token "
                "with audience weightlease.io there, or unset it on a bare host"
            ) from error


def _invalid(message: str) -> WeightLeaseError:
    return WeightLeaseError.of(Stage.CONFIGURATION, FailureCode.INVALID_CONFIG, message)
