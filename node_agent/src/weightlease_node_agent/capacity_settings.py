"""How much a node's artifacts may take, as an administrator says it.

Sizes are bytes, or text such as 500Gi as Kubernetes writes it. 0 always means: no such limit.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

_QUANTITY = re.compile(r"([0-9]{1,15})(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?")
_POWERS = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def parse_bytes(value: object) -> object:
    """Bytes of a quantity; anything that is not text is left to the field.

    Raises:
        ValueError: text that is no whole, non-negative quantity.

    """
    if not isinstance(value, str):
        return value
    match = _QUANTITY.fullmatch(value.strip() or "0")
    if match is None:
        raise ValueError(f"{value[:40]!r} is no size; write bytes or a whole number with Ki to Pi")
    number, unit = int(match[1]), match[2] or ""
    base = 1024 if unit.endswith("i") else 1000
    return number * base ** _POWERS.get(unit[:1], 0)


Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0)]
Percent = Annotated[int, Field(ge=0, le=90)]


class _Group(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True
    )


class ClassCapacity(_Group):
    """Limits of one storage class."""

    budget: Bytes = 0
    """what all namespaces' artifacts may take together on this node"""
    max_artifact: Bytes = 0
    """what one artifact may take"""
    namespace_quota: Bytes = 0
    """what one namespace's artifacts may take"""
    namespace_quotas: dict[str, Bytes] = Field(default_factory=dict)
    """the same for namespaces by name, before `namespace_quota`"""

    def quota_of(self, namespace: str) -> int:
        """The quota of a namespace in bytes; 0 without one."""
        return self.namespace_quotas.get(namespace, self.namespace_quota)


class DiskCapacity(ClassCapacity):
    """The disk class; its floors keep the node clear of kubelet's DiskPressure."""

    min_free: Bytes = 0
    """what the filesystem keeps free, whoever fills it"""
    min_free_percent: Percent = 0
    """the same as a share of the filesystem; the larger of the two counts"""
    min_free_inodes_percent: Percent = 0
    """the share of inodes that stays free"""


class MemoryCapacity(ClassCapacity):
    """The memory class; what lies in it is memory of the agent's control group."""

    min_available: Bytes = 0
    """memory that the node, and the agent's own limit, keep available"""


class CapacitySettings(_Group):
    """Limits of this node, and whether the agent makes room by itself."""

    disk: DiskCapacity = DiskCapacity()
    memory: MemoryCapacity = MemoryCapacity()
    evict: bool = False
    """remove artifacts that nothing refers to and nobody leases, least recently leased first,
    when room is short"""


class Unmanaged(_Group):
    """A namespace whose pods may publish keys that no WeightArtifact asks for."""

    quota: Annotated[int, BeforeValidator(parse_bytes), Field(gt=0)]
    """what such keys may take, in each storage class"""
    expiry_seconds: Annotated[float, Field(gt=0, lt=float("inf"))]
    """how long after its last lease, or its publication, such a key is removed"""
