"""What of a cluster runs right now."""

from typing import Any

from devcluster import control_plane, nodes, processes, record
from devcluster.cluster import Cluster


def status(cluster: Cluster) -> dict[str, Any]:
    """``{"state", "running", "components": {name: pid|None}, "nodes": {name: {...}}}``.

    ``running`` means that the API server is ready and every node Ready.
    """
    layout = cluster.layout
    noted = record.load(layout.record)
    if noted is None:
        return {"state": str(layout.state), "running": False, "components": {}, "nodes": {}}
    ready = cluster.kubectl.ready_nodes()
    shown = {}
    for node in cluster.all_nodes(noted):
        pids = {
            program: processes.pid_of(nodes.pid_file(layout, node, program))
            for program in ("namespace", "containerd", "kubelet")
        }
        shown[node.name] = {
            "ready": node.name in ready,
            "address": noted.network.node_address(node.index),
            "processes": pids,
            "files": {"store": str(node.behind("/var/lib/weightlease"))},
        }
    return {
        "state": str(layout.state),
        "running": bool(shown) and all(node["ready"] for node in shown.values()),
        "components": {
            name: processes.pid_of(control_plane.pid_file(layout, name))
            for name in control_plane.COMPONENTS
        },
        "nodes": shown,
    }
