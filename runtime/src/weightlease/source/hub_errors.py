"""What the Hub's client raises, as reasons. Messages never quote headers, tokens or signed URLs."""

from __future__ import annotations

import errno

from weightlease.errors import WeightLeaseError
from weightlease.reasons import Reason
from weightlease.source.errors import SourceError
from weightlease.source.hub_http import Compressed, GaveUp, Moved, TooLong

_BY_STATUS = {
    401: Reason.SOURCE_UNAUTHORIZED,
    403: Reason.SOURCE_UNAUTHORIZED,
    404: Reason.SOURCE_NOT_FOUND,
    410: Reason.SOURCE_NOT_FOUND,
    429: Reason.SOURCE_RATE_LIMITED,
}
_HINTS = {
    Reason.SOURCE_UNAUTHORIZED: "the Hub refused access; give tokenSecretRef a token that may read "
    "it (without one the Hub does not tell a private repository from a missing one)",
    Reason.SOURCE_NOT_FOUND: "the Hub does not have it",
    Reason.SOURCE_RATE_LIMITED: "the Hub limits the rate of requests; give a token, or retry later",
    Reason.SOURCE_UNAVAILABLE: "the Hub did not answer properly",
}


def translate(error: Exception, what: str) -> WeightLeaseError:
    """The reason behind `error`; `what` names the repository and what was asked of it."""
    from huggingface_hub import errors as hub

    if isinstance(error, WeightLeaseError):
        return error  # from whoever waited for the fetch

    cause = error.__cause__
    if isinstance(error, hub.LocalEntryNotFoundError) and isinstance(cause, Exception):
        return translate(cause, what)
    if isinstance(error, GaveUp):
        return _by_status(error.status, what, f": {error}")
    fixed: tuple[tuple[type[Exception], Reason, str], ...] = (
        (Moved, Reason.SOURCE_CHANGED, f"the server answered for commit {error}"),
        (TooLong, Reason.SOURCE_MALFORMED, str(error)),
        (
            Compressed,
            Reason.SOURCE_MALFORMED,
            f"the answer is compressed ({error}), which was not asked for; let no proxy compress",
        ),
        (hub.HFValidationError, Reason.REQUEST_INVALID, "not a valid repository id"),
        (
            hub.GatedRepoError,
            Reason.SOURCE_UNAUTHORIZED,
            "the repository is gated; accept its terms with the account of the token",
        ),
        (
            hub.RevisionNotFoundError,
            Reason.SOURCE_NOT_FOUND,
            "the Hub does not have this revision",
        ),
    )
    for kind, reason, message in fixed:
        if isinstance(error, kind):
            return SourceError(reason, f"{what}: {message}")
    if isinstance(error, hub.HfHubHTTPError):
        return _by_status(error.response.status_code, what)
    return _other(error, what)


def _by_status(status: int, what: str, more: str = "") -> SourceError:
    reason = _BY_STATUS.get(status, Reason.SOURCE_UNAVAILABLE)
    shown = f" (status {status})" if status else ""
    return SourceError(reason, f"{what}: {_HINTS[reason]}{shown}{more}", status=status)


def _other(error: Exception, what: str) -> SourceError:
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return SourceError(
            Reason.INSUFFICIENT_CAPACITY, f"{what}: the scratch volume is full; enlarge it"
        )
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return SourceError(
            Reason.SOURCE_MALFORMED, f"{what}: its name is too long for the scratch volume"
        )
    if isinstance(error, KeyError | TypeError | AttributeError | ValueError | RecursionError):
        return SourceError(
            Reason.SOURCE_MALFORMED, f"{what}: the answer is not the Hub's: {type(error).__name__}"
        )
    return SourceError(
        Reason.SOURCE_UNAVAILABLE,
        f"{what}: {_HINTS[Reason.SOURCE_UNAVAILABLE]}: {type(error).__name__}",
    )
