"""Named places where a test can make the store fail or die.

    WEIGHTLEASE_FAILPOINTS="<name>=<term>[,<name>=<term>…]"      term: off | error | kill

`error` raises OSError(EIO), `kill` ends the process by SIGKILL as a crash would. The variable is
read once, when the store is imported; without it a failpoint costs one dictionary look-up.
"""

from __future__ import annotations

import errno
import os
import signal
from enum import StrEnum

ENVIRONMENT = "WEIGHTLEASE_FAILPOINTS"


class Term(StrEnum):
    """What happens at a failpoint."""

    OFF = "off"
    ERROR = "error"
    KILL = "kill"


class Point(StrEnum):
    """Every failpoint, in the order in which a publication, then a cleanup, passes them."""

    BEFORE_STAGING = "before-staging"
    AFTER_PAYLOAD = "after-payload"
    BEFORE_MANIFEST = "before-manifest"
    BEFORE_READY = "before-ready"
    BEFORE_SEAL = "before-seal"
    BEFORE_ASSETS_RENAME = "before-assets-rename"
    BEFORE_RENAME = "before-rename"
    AFTER_RENAME = "after-rename"
    BEFORE_COMMIT = "before-commit"
    AFTER_COMMIT = "after-commit"
    BEFORE_CONTAINMENT = "before-containment"
    BEFORE_TOMBSTONE = "before-tombstone"
    AFTER_TOMBSTONE = "after-tombstone"
    BEFORE_DENY_REMOVAL = "before-deny-removal"


def parse_terms(text: str) -> dict[Point, Term]:
    """Read the variable's value.

    Raises:
        ValueError: an unknown failpoint or term.

    """
    terms: dict[Point, Term] = {}
    for item in filter(None, text.split(",")):
        name, _, term = item.partition("=")
        terms[Point(name.strip())] = Term(term.strip())
    return terms


_terms = parse_terms(os.environ.get(ENVIRONMENT, ""))


def reach(point: Point) -> None:
    """Pass a failpoint.

    Raises:
        OSError: EIO, where a test asked for it.

    """
    term = _terms.get(point, Term.OFF)
    if term is Term.KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    if term is Term.ERROR:
        raise OSError(errno.EIO, f"failpoint {point}")
