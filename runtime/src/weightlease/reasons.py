"""Reasons: one vocabulary for conditions, events, metrics, exit codes and termination messages.

A producer ends with the exit code of its reason and writes this JSON, at most 4 KiB, to its
termination log:

    {"reason": "ChecksumMismatch", "message": "...", "retryable": false,
     "key": "<64 hex>" | "", "manifestSha256": "<64 hex>" | "", "bytes": 0}

Exit codes below 64 belong to Python and the shell; 137 and 143 are signals.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Reason(StrEnum):
    """Why an artifact is, or is not, where it should be."""

    # producer
    PUBLISHED = "Published"
    ALREADY_PUBLISHED = "AlreadyPublished"
    REQUEST_INVALID = "RequestInvalid"
    SOURCE_NOT_FOUND = "SourceNotFound"
    SOURCE_UNAUTHORIZED = "SourceUnauthorized"
    SOURCE_RATE_LIMITED = "SourceRateLimited"
    SOURCE_UNAVAILABLE = "SourceUnavailable"
    SOURCE_CHANGED = "SourceChanged"
    SOURCE_MALFORMED = "SourceMalformed"
    MISSING_SHARD = "MissingShard"
    CHECKSUM_MISMATCH = "ChecksumMismatch"
    IDENTITY_MISMATCH = "IdentityMismatch"
    CONTENT_MISMATCH = "ContentMismatch"
    AGENT_UNAVAILABLE = "AgentUnavailable"
    AGENT_REFUSED = "AgentRefused"
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    PUBLICATION_FAILED = "PublicationFailed"
    INTERRUPTED = "Interrupted"
    PRODUCER_CRASHED = "ProducerCrashed"
    # operator
    SPEC_INVALID = "SpecInvalid"
    PRODUCER_NOT_FOUND = "ProducerNotFound"
    PRODUCER_UNSUPPORTED = "ProducerUnsupported"
    HOST_PATH_NOT_ALLOWED = "HostPathNotAllowed"
    NO_MATCHING_NODE = "NoMatchingNode"
    AGENT_NOT_REPORTING = "AgentNotReporting"
    SUSPENDED = "Suspended"
    CANARY = "Canary"
    ROLLING_OUT = "RollingOut"
    ALL_NODES_READY = "AllNodesReady"
    CAPACITY_AVAILABLE = "CapacityAvailable"
    PREWARM_FAILED = "PrewarmFailed"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    SOURCE_NOT_MOUNTABLE = "SourceNotMountable"
    IMAGE_NOT_PULLABLE = "ImageNotPullable"
    POD_NOT_STARTABLE = "PodNotStartable"
    CANARY_DISPUTED = "CanaryDisputed"
    DELETING = "Deleting"
    LEASED = "Leased"


class ExitStatus(msgspec.Struct, frozen=True):
    """How a producer's reason ends its process, and whether a new attempt can help."""

    code: int
    retryable: bool


# One row per way a producer ends. The operator's pod failure policy stops a Job on the
# codes of the rows that are not retryable.
EXIT_STATUS: dict[Reason, ExitStatus] = {
    Reason.PUBLISHED: ExitStatus(0, retryable=False),
    Reason.ALREADY_PUBLISHED: ExitStatus(0, retryable=False),
    Reason.REQUEST_INVALID: ExitStatus(64, retryable=False),
    Reason.SOURCE_NOT_FOUND: ExitStatus(65, retryable=False),
    Reason.SOURCE_UNAUTHORIZED: ExitStatus(66, retryable=False),
    Reason.SOURCE_MALFORMED: ExitStatus(67, retryable=False),
    Reason.MISSING_SHARD: ExitStatus(68, retryable=False),
    Reason.CHECKSUM_MISMATCH: ExitStatus(69, retryable=True),
    Reason.SOURCE_CHANGED: ExitStatus(70, retryable=False),
    Reason.IDENTITY_MISMATCH: ExitStatus(71, retryable=False),
    Reason.CONTENT_MISMATCH: ExitStatus(72, retryable=False),
    Reason.AGENT_REFUSED: ExitStatus(73, retryable=False),
    Reason.PUBLICATION_FAILED: ExitStatus(74, retryable=False),
    Reason.SOURCE_RATE_LIMITED: ExitStatus(80, retryable=True),
    Reason.SOURCE_UNAVAILABLE: ExitStatus(81, retryable=True),
    Reason.AGENT_UNAVAILABLE: ExitStatus(82, retryable=True),
    Reason.INSUFFICIENT_CAPACITY: ExitStatus(83, retryable=True),
    Reason.INTERRUPTED: ExitStatus(84, retryable=True),
    Reason.PRODUCER_CRASHED: ExitStatus(1, retryable=True),
}

NON_RETRYABLE_EXIT_CODES = tuple(
    sorted(status.code for status in EXIT_STATUS.values() if status.code and not status.retryable)
)

MAX_TERMINATION_BYTES = 4096


class TerminationMessage(msgspec.Struct, frozen=True, rename="camel"):
    """What a producer says when it ends."""

    reason: Reason
    message: str
    retryable: bool
    key: str = ""
    manifest_sha256: str = ""
    bytes: int = 0


def encode_termination(message: TerminationMessage) -> str:
    """The JSON for the termination log, its text cut so that it fits."""
    encoded = msgspec.json.encode(message)
    excess = len(encoded) - MAX_TERMINATION_BYTES
    if excess > 0:
        # Escapes make one character at most six bytes, so this cut always suffices.
        keep = max(0, len(message.message) - excess - 1)
        cut = msgspec.structs.replace(message, message=message.message[:keep] + "…")
        while len(encoded := msgspec.json.encode(cut)) > MAX_TERMINATION_BYTES:
            keep //= 2
            cut = msgspec.structs.replace(message, message=message.message[:keep] + "…")
    return encoded.decode()


def decode_termination(text: str) -> TerminationMessage | None:
    """Read a termination message; anything that is not one (a tenant writes it) is None."""
    try:
        return msgspec.json.decode(text.encode(), type=TerminationMessage, strict=True)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None
