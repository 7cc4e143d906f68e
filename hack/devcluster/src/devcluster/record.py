"""The note of what a cluster took on the host, written before it is taken.

``cluster.json``::

    {"format": 1, "network": {"instance", "service_cidr", "pod_cidr", "etcd_port"},
     "sysctls": {"net/ipv4/ip_forward": "0", ...},      values to restore
     "created": ["/var/lib/kubelet", ...],              folders to remove when empty
     "nodes": {"node-1": 1, ...},                       name to index
     "archives": ["/.../operator-<hash>.tar", ...],     images that every node has loaded
     "extra": {"kubelet": ["--v=4"], ...}}              flags added by the user

``down`` needs nothing but this file, so it undoes a cluster that was started under other settings.
"""

import ipaddress
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devcluster.errors import DevclusterError
from devcluster.settings import Network

_FORMAT = 1


@dataclass(slots=True)
class Record:
    """Contents of ``cluster.json``; ``save`` after every change and before acting on it."""

    network: Network
    sysctls: dict[str, str] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)
    nodes: dict[str, int] = field(default_factory=dict)
    archives: list[str] = field(default_factory=list)
    extra: dict[str, list[str]] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(".new")
        written.write_text(json.dumps(self.to_json(), indent=1))
        written.rename(path)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "network": {
                "instance": self.network.instance,
                "service_cidr": str(self.network.service_cidr),
                "pod_cidr": str(self.network.pod_cidr),
                "etcd_port": self.network.etcd_port,
            },
            "sysctls": self.sysctls,
            "created": self.created,
            "nodes": self.nodes,
            "archives": self.archives,
            "extra": self.extra,
        }


def load(path: Path) -> Record | None:
    """The record at ``path``, None where there is none. Raises DevclusterError when unreadable."""
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DevclusterError(f"{path} is not JSON: remove the cluster by hand") from error
    return from_json(document, path)


def from_json(document: Any, path: Path) -> Record:
    """Checks the shape; ``path`` only names the file in errors."""
    try:
        if document["format"] != _FORMAT:
            raise DevclusterError(
                f"{path} has format {document['format']!r}, not {_FORMAT}: "
                "run down with the version of this tool that started the cluster"
            )
        network = document["network"]
        return Record(
            network=Network(
                instance=int(network["instance"]),
                service_cidr=ipaddress.IPv4Network(network["service_cidr"]),
                pod_cidr=ipaddress.IPv4Network(network["pod_cidr"]),
                etcd_port=int(network["etcd_port"]),
            ),
            sysctls=dict(document["sysctls"]),
            created=list(document["created"]),
            nodes={str(name): int(index) for name, index in document["nodes"].items()},
            archives=list(document["archives"]),
            extra=dict(document["extra"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DevclusterError(f"{path} is not a cluster's record: {error!r}") from error
