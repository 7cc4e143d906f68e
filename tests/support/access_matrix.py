"""Who may do what with an artifact: a real agent is held to this table, docs/security.md shows it.

The artifact is `team-a/minilm`, published, with `access.namespaces: [team-c]` and the service
account `team-b/trainer` among its publishers; `research` is opened for unmanaged keys.
"""

from __future__ import annotations

from enum import StrEnum

YES, NO = "yes", "no"


class Who(StrEnum):
    """A peer; the value is how the page names it."""

    POD = "a pod of the artifact's namespace"
    JOB = "the Job that the node's entry names"
    GRANTED = "a pod of a namespace in `access.namespaces`"
    PUBLISHER = "a pod whose service account is in `access.publishers`"
    STRANGER = "a pod of any other namespace"
    OPENED = "a pod of a namespace opened for unmanaged keys"
    POD_AWAY = "the namespace's pod, known, while the API server is away"
    JOB_AWAY = "the Job, known, while the API server is away"
    NEW_AWAY = "a pod not seen before, while the API server is away"
    OTHER_NODE = "a pod of another node"
    OTHER_AUDIENCE = "a token for another audience"
    FORGED = "a token that the API server does not know"
    NO_TOKEN = "no token"
    UID_ALLOWED = "bare host: an allowed uid"
    UID_OTHER = "bare host: another uid"


class What(StrEnum):
    """A request; the value is the column's head."""

    LEASE_NAME = "lease by name"
    LEASE_KEY = "lease by key"
    SEE = "see it in inspect"
    PUBLISH = "publish its key"
    PUBLISH_THERE = "publish another key there"
    PUBLISH_OWN = "publish any key in its own namespace"
    REMOVE = "remove it"


def _same(outcome: str) -> dict[What, str]:
    return dict.fromkeys(What, outcome)


_OWN = {
    What.LEASE_NAME: YES,
    What.LEASE_KEY: YES,
    What.SEE: YES,
    What.PUBLISH: "producer_unavailable",
    What.PUBLISH_THERE: "producer_unavailable",
    What.PUBLISH_OWN: "producer_unavailable",
    What.REMOVE: "permission_denied",
}
_FOREIGN = {
    What.LEASE_NAME: "permission_denied",
    What.LEASE_KEY: "local_miss",
    What.SEE: NO,
    What.PUBLISH: "permission_denied",
    What.PUBLISH_THERE: "permission_denied",
    What.PUBLISH_OWN: "producer_unavailable",
    What.REMOVE: "permission_denied",
}

# A failure at `hello` stands in every column: there is no connection to ask on.
MATRIX: dict[Who, dict[What, str]] = {
    Who.POD: _OWN,
    Who.JOB: {
        **_OWN,
        What.PUBLISH: YES,
        What.PUBLISH_THERE: "identity_mismatch",
        What.PUBLISH_OWN: "identity_mismatch",
    },
    Who.GRANTED: {**_FOREIGN, What.LEASE_NAME: YES, What.LEASE_KEY: YES},
    Who.PUBLISHER: {**_FOREIGN, What.PUBLISH: YES},
    Who.STRANGER: _FOREIGN,
    Who.OPENED: {**_FOREIGN, What.PUBLISH_OWN: YES},
    Who.POD_AWAY: _OWN,
    Who.JOB_AWAY: _OWN,
    Who.NEW_AWAY: _same("unauthenticated"),
    Who.OTHER_NODE: _same("permission_denied"),
    Who.OTHER_AUDIENCE: _same("unauthenticated"),
    Who.FORGED: _same("unauthenticated"),
    Who.NO_TOKEN: _same("unauthenticated"),
    Who.UID_ALLOWED: {**_same(YES), What.LEASE_NAME: "unsupported"},
    Who.UID_OTHER: _same("permission_denied"),
}

CELLS = [(who, what, outcome) for who, row in MATRIX.items() for what, outcome in row.items()]


def as_markdown() -> str:
    """The table, one row a peer."""
    head = "| who | " + " | ".join(What) + " |"
    lines = [head, "|---" * (len(What) + 1) + "|"]
    for who, row in MATRIX.items():
        cells = (row[what] if row[what] in {YES, NO} else f"`{row[what]}`" for what in What)
        lines.append(f"| {who} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
