"""How a call to the API server fails, by what the caller does about it.

ApiError
├── NotFound       404: the object is gone, or never was
├── Conflict       409: somebody else wrote; read again
├── Refused        400, 403, 422: the same call will fail again until a person changes something
├── Unavailable    no answer, 401, 429, 5xx: later
└── NotLeading     no call was made: another operator may lead by now
"""

from __future__ import annotations


class ApiError(Exception):
    """Base; `status` is the HTTP status, 0 without an answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class NotFound(ApiError):
    """The object is gone, or never was."""


class Conflict(ApiError):
    """The object exists already, or changed since it was read."""


class Refused(ApiError):
    """The server will not do this."""


class Unavailable(ApiError):
    """The server cannot do this now."""


class NotLeading(ApiError):
    """The operator that calls may not write."""


BY_STATUS: dict[int, type[ApiError]] = {
    400: Refused,
    403: Refused,
    404: NotFound,
    409: Conflict,
    422: Refused,
}


def error_for(status: int, message: str) -> ApiError:
    """The error that stands for an HTTP status."""
    return BY_STATUS.get(status, Unavailable)(message, status)
