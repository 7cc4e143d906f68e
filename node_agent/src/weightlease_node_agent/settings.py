"""What an agent is told at start: flags override environment variables, which override defaults.

Every variable begins with WEIGHTLEASE_; a field of a group is named with two underscores, as in
WEIGHTLEASE_LIMITS__HELLO_SECONDS. Nothing else in the agent reads the environment.
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from weightlease.names import AGENT_METRICS_PORT, SOCKET_PATH, STORE_ROOT, StorageClass
from weightlease_node_agent.capacity_settings import CapacitySettings, Unmanaged

_Seconds = Annotated[float, Field(gt=0, lt=float("inf"))]
_Count = Annotated[int, Field(ge=1)]


class AuthMode(StrEnum):
    """How a peer proves who it is."""

    TOKEN = "token"  # noqa: S105 - a mode, not a secret
    UID = "uid"


class Limits(BaseModel):
    """What one peer, and all peers together, may cost."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hello_seconds: _Seconds = 5.0
    """seconds from connecting to a complete hello; a stranger holds a descriptor until then"""
    frame_seconds: _Seconds = 10.0
    """seconds from a frame's first byte to its last; a dripping peer holds its buffer until then"""
    idle_seconds: _Seconds = 900.0
    """seconds between two requests; leases outlive the connection, so an idle one may go"""
    send_seconds: _Seconds = 10.0
    """seconds until a peer has read a reply; past it the peer is dropped with what is queued"""
    body_seconds: _Seconds = 60.0
    """seconds a producer may pause while it owes bytes or its next request; it blocks its key"""
    connections: _Count = 1024
    """connections together; each costs a descriptor and a task"""
    connections_per_peer: _Count = 64
    """connections of one pod, or of one process of a bare host"""
    strangers: _Count = 128
    """connections without a complete hello; past it the oldest of the busiest stranger goes"""
    reviews: _Count = 256
    """hellos that wait for a token review, together; a few of them at a time are asked"""
    reviews_per_stranger: _Count = 128
    """the same for one origin; in a cluster the kernel tells pods apart by their uid alone"""
    publications: _Count = 8
    """publications that stream at once; each has a thread and 64 MiB of buffers"""
    publications_per_peer: _Count = 4
    """publications, waiting ones included, of one peer"""
    requests_per_peer: _Count = 4
    """requests of one peer that are worked on at once; fewer than threads, so that others pass"""
    descriptors_per_peer: _Count = 512
    """descriptors sent to one peer and not read yet; the kernel charges them to the agent"""
    threads: _Count = 8
    """threads for store work that blocks"""


class Intervals(BaseModel):
    """How often the agent looks by itself, in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lease_sweep: _Seconds = 5.0
    """between two probes of every lease file: how late a silently ended lease is noticed"""
    idle_pin: Annotated[float, Field(ge=0, lt=60)] = 5.0
    """how long a validated artifact stays open after its last lease, so that the next is quick"""
    artifact_sweep: _Seconds = 30.0
    """between two looks for artifacts that no spec entry names"""
    status: _Seconds = 15.0
    """the shortest time between two status writes without a change of state"""
    heartbeat: _Seconds = 60.0
    """the longest time between two status writes; the operator's grace is several of these"""
    stop: _Seconds = 10.0
    """how long a graceful stop waits for replies in flight"""


class Settings(BaseSettings):
    """Everything an agent is told."""

    model_config = SettingsConfigDict(
        env_prefix="WEIGHTLEASE_", env_nested_delimiter="__", frozen=True, extra="ignore"
    )

    node_name: str = Field(default_factory=lambda: os.uname().nodename, min_length=1)
    """the Node's name; a token of another node is refused"""
    disk_root: Path | None = Path(STORE_ROOT, "disk")
    """domains of storage class disk, one folder a namespace; empty turns the class off"""
    memory_root: Path | None = None
    """domains of storage class memory on a tmpfs of our own; empty turns the class off"""
    disk_export: Path | None = None
    """the recursive read-only mount of disk_root; consumers' descriptors are opened below it"""
    memory_export: Path | None = None
    """the recursive read-only mount of memory_root"""
    socket: Path = Path(SOCKET_PATH)
    """where peers connect; its folder is created 0755"""
    volumes: Path | None = None
    """where the CSI driver and pods' volumes find this agent; empty serves no volumes"""
    auth: AuthMode = AuthMode.TOKEN
    """`token` asks the API server who a peer is, `uid` the kernel (bare hosts)"""
    allowed_uids: Annotated[frozenset[int], NoDecode] = frozenset({0})
    """uids served in uid mode, beside the agent's own; comma separated"""
    kubeconfig: str = ""
    """a kubeconfig file for an agent outside a cluster; empty inside one"""
    http_host: str = "0.0.0.0"  # noqa: S104 - probes and Prometheus come from the node and its pods
    """address of /healthz, /readyz and /metrics"""
    http_port: Annotated[int, Field(ge=-1, le=65535)] = AGENT_METRICS_PORT
    """port of the same; 0 takes a free one, -1 serves none"""
    limits: Limits = Limits()
    intervals: Intervals = Intervals()
    capacity: CapacitySettings = CapacitySettings()
    """what artifacts may take on this node"""
    unmanaged: dict[str, Unmanaged] = Field(default_factory=dict)
    """namespaces whose pods may publish keys that no WeightArtifact asks for"""

    @model_validator(mode="before")
    @classmethod
    def _lists_and_empty_paths(cls, values: dict[str, object]) -> dict[str, object]:
        checked = dict(values)
        uids = checked.get("allowed_uids")
        if isinstance(uids, str):
            checked["allowed_uids"] = [part for part in uids.split(",") if part.strip()]
        for name in ("disk_root", "memory_root", "disk_export", "memory_export", "volumes"):
            if checked.get(name) == "":
                checked[name] = None
        return checked

    @model_validator(mode="after")
    def _roots_are_complete(self) -> Self:
        if not self.roots:
            raise ValueError("disk_root and memory_root are both empty; give at least one")
        for name, root, export in (
            ("disk", self.disk_root, self.disk_export),
            ("memory", self.memory_root, self.memory_export),
        ):
            if export is not None and root is None:
                raise ValueError(f"{name}_export {str(export)!r} has no {name}_root")
        return self

    @property
    def roots(self) -> dict[StorageClass, Path]:
        """Where each storage class in use lives."""
        pairs = {StorageClass.DISK: self.disk_root, StorageClass.MEMORY: self.memory_root}
        return {storage: path for storage, path in pairs.items() if path is not None}

    def export_of(self, storage_class: StorageClass) -> Path | None:
        """The read-only mount of a class, if there is one."""
        return self.disk_export if storage_class is StorageClass.DISK else self.memory_export
