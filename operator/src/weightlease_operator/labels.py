"""Labels and annotations of prewarm Jobs: how a Job says what it is for.

A label holds at most 63 characters, so long values are cut and hashed there, and the whole value is
in an annotation of the same name.
"""

from __future__ import annotations

from weightlease.names import (
    GROUP,
    LABEL_ARTIFACT,
    LABEL_ARTIFACT_UID,
    LABEL_ATTEMPT,
    LABEL_GENERATION,
    LABEL_MANAGED_BY,
    LABEL_NODE,
    LABEL_SHARD,
    MANAGED_BY_OPERATOR,
    hashed_name,
)

# which content of the spec, and which value of the retry annotation, a Job was made for
ANNOTATION_CONTENT = f"{GROUP}/content"
ANNOTATION_RETRY_SEEN = f"{GROUP}/retry-seen"
ANNOTATION_NODE = LABEL_NODE
# a node that is deleted and comes back under its name is another node
ANNOTATION_NODE_UID = f"{GROUP}/node-uid"
ANNOTATION_ARTIFACT = LABEL_ARTIFACT

# selects our Jobs and their pods, and only those
SELECTOR = f"{LABEL_MANAGED_BY}={MANAGED_BY_OPERATOR},{LABEL_ARTIFACT_UID}"

_LABEL_LIMIT = 63


def label_value(text: str) -> str:
    """`text`, or a readable cut of it with a digest when a label cannot hold it."""
    return text if len(text) <= _LABEL_LIMIT else hashed_name(text, text, limit=_LABEL_LIMIT)


def job_labels(
    *, artifact: str, uid: str, component: str, node: str, generation: int, attempt: int
) -> dict[str, str]:
    return {
        LABEL_MANAGED_BY: MANAGED_BY_OPERATOR,
        LABEL_ARTIFACT: label_value(artifact),
        LABEL_ARTIFACT_UID: uid,
        LABEL_SHARD: component,
        LABEL_NODE: label_value(node),
        LABEL_GENERATION: str(generation),
        LABEL_ATTEMPT: str(attempt),
    }
