"""What the CSI driver says of a volume is checked as if anybody could have said it."""

from __future__ import annotations

import re

from weightlease.names import VOLUME_ATTRIBUTE_ARTIFACT, parse_reference
from weightlease.wire import PublishVolumeParams
from weightlease_node_agent.volumes.directory import unusable

_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN = rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*"
_FIELDS: dict[str, re.Pattern[str]] = {
    "volume_id": re.compile(r"[A-Za-z0-9._-]{1,128}"),
    "target": re.compile(r"/[^\0\n]{1,4000}"),
    "namespace": re.compile(_LABEL),
    "pod": re.compile(_SUBDOMAIN),
    "pod_uid": re.compile(r"[A-Za-z0-9-]{1,64}"),
    "service_account": re.compile(rf"|{_SUBDOMAIN}"),
}


def check_publish(params: PublishVolumeParams) -> None:
    """Whether a volume can be made of this.

    Raises:
        WeightLeaseError: invalid_config, naming the field and its value.

    """
    for name, pattern in _FIELDS.items():
        value: str = getattr(params, name)
        if pattern.fullmatch(value) is None:
            raise unusable(f"{name} {value[:80]!r} is not what a kubelet sends")
    if params.artifact:
        try:
            parse_reference(params.artifact)
        except ValueError as error:
            raise unusable(f"volume attribute {VOLUME_ATTRIBUTE_ARTIFACT}: {error}") from error
