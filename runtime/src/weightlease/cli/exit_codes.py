"""How the command line ends. Scripts rely on these numbers: they are never reused."""

from __future__ import annotations

from enum import IntEnum

from weightlease.errors import FailureCode, WeightLeaseError
from weightlease.reasons import Reason
from weightlease.source.errors import SourceError

TABLE = """exit codes:
    code  meaning       typical cause
    0     done          also: published before, lease ended by a signal
    1     failed        anything not listed below
    2     usage         unknown option, malformed key or reference
    3     not found     no such artifact, source or store
    4     in use        leased, or being built
    5     invalid       checksum, manifest or identity is wrong; denied
    6     unreachable   no agent behind the socket, store not usable
    7     refused       not authenticated, not allowed, or the root is a running agent's
    8     no room       disk full or a limit reached
    130   interrupted   Ctrl-C before the work was done

weightlease lease … -- command ends with the command's own code, 128 + n if signal n ended it."""


class ExitCode(IntEnum):
    """One way to end."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    IN_USE = 4
    INVALID = 5
    UNREACHABLE = 6
    REFUSED = 7
    NO_ROOM = 8
    INTERRUPTED = 130


_BY_FAILURE = {
    FailureCode.INVALID_CONFIG: ExitCode.USAGE,
    FailureCode.LOCAL_MISS: ExitCode.NOT_FOUND,
    FailureCode.ACTIVE_LEASE: ExitCode.IN_USE,
    FailureCode.ACTIVE_BUILD_TIMEOUT: ExitCode.IN_USE,
    FailureCode.TOO_MANY_REQUESTS: ExitCode.IN_USE,
    FailureCode.ARTIFACT_DENIED: ExitCode.INVALID,
    FailureCode.MANIFEST_CORRUPT: ExitCode.INVALID,
    FailureCode.MANIFEST_INCOMPATIBLE: ExitCode.INVALID,
    FailureCode.CHECKSUM_MISMATCH: ExitCode.INVALID,
    FailureCode.IDENTITY_COLLISION: ExitCode.INVALID,
    FailureCode.IDENTITY_MISMATCH: ExitCode.INVALID,
    FailureCode.CONTENT_MISMATCH: ExitCode.INVALID,
    FailureCode.PROTOCOL_ERROR: ExitCode.UNREACHABLE,
    FailureCode.DOMAIN_UNAVAILABLE: ExitCode.UNREACHABLE,
    FailureCode.DOMAIN_POLICY_MISMATCH: ExitCode.UNREACHABLE,
    FailureCode.STORAGE_CLASS_MISMATCH: ExitCode.UNREACHABLE,
    FailureCode.UNAUTHENTICATED: ExitCode.REFUSED,
    FailureCode.PERMISSION_DENIED: ExitCode.REFUSED,
    FailureCode.PRODUCER_UNAVAILABLE: ExitCode.REFUSED,
    FailureCode.ARTIFACT_TOO_LARGE: ExitCode.NO_ROOM,
    FailureCode.STORE_LIMIT_EXCEEDED: ExitCode.NO_ROOM,
    FailureCode.INSUFFICIENT_CAPACITY: ExitCode.NO_ROOM,
    FailureCode.ENOSPC: ExitCode.NO_ROOM,
}
_BY_REASON = {
    Reason.SOURCE_NOT_FOUND: ExitCode.NOT_FOUND,
    Reason.SOURCE_MALFORMED: ExitCode.INVALID,
    Reason.MISSING_SHARD: ExitCode.INVALID,
    Reason.SOURCE_CHANGED: ExitCode.INVALID,
    Reason.SOURCE_UNAUTHORIZED: ExitCode.REFUSED,
}


def exit_code(error: WeightLeaseError) -> ExitCode:
    """The code that `error` ends with."""
    if isinstance(error, SourceError) and error.reason in _BY_REASON:
        return _BY_REASON[error.reason]
    return _BY_FAILURE.get(error.failure.code, ExitCode.FAILED)
