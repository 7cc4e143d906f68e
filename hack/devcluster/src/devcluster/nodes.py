"""One node: a mount namespace of its own with a containerd and a kubelet in it.

A ``sleep`` keeps the namespace. Inside, the root is shared recursively, so that mounts propagate
between pods and the node as on a real host; towards the host nothing propagates, and when the last
process of the node has gone, so have all its mounts.
"""

import ipaddress
import shlex
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from devcluster import commands, configuration, host, pki, processes, waiting
from devcluster.configuration import HostTraits
from devcluster.errors import MissingPrerequisite, NoCluster
from devcluster.layout import BOUND_PATHS, CONTAINERD_SOCKET, Layout, NodeLayout
from devcluster.record import Record

NODE_VARIABLE = "DEVCLUSTER_NODE"
_NAMESPACE_SECONDS = 10.0
_CONTAINERD_SECONDS = 30.0
_IMPORT_SECONDS = 300.0
_CNI_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")
CNI_PLUGINS = ("bridge", "host-local", "loopback")


def pid_file(layout: Layout, node: NodeLayout, program: str) -> Path:
    """``program`` is ``namespace``, ``containerd`` or ``kubelet``."""
    return layout.pids / f"{node.name}-{program}.json"


def is_up(layout: Layout, node: NodeLayout) -> bool:
    """Whether it was started whole and still is; the kubelet may be stopped on purpose."""
    programs = ("namespace", "containerd")
    return node.complete.exists() and all(
        processes.pid_of(pid_file(layout, node, name)) is not None for name in programs
    )


def find_cni_plugins() -> Path | None:
    for folder in map(Path, _CNI_FOLDERS):
        if all((folder / plugin).exists() for plugin in CNI_PLUGINS):
            return folder
    return None


def traits(programs: Path) -> HostTraits:
    """What this host makes different in a node's configuration."""
    plugins = find_cni_plugins()
    if plugins is None:
        raise MissingPrerequisite("no CNI plugins found: run the packages command")
    resolvers = [Path("/run/systemd/resolve/resolv.conf"), Path("/etc/resolv.conf")]
    return HostTraits(
        cgroup_version=host.cgroup_version(),
        may_lower_oom_scores=host.has_sys_resource(),
        cni_plugins=plugins,
        runc=(programs / "runc").resolve(),
        resolv_conf=next((str(path) for path in resolvers if path.exists()), ""),
    )


def namespace_script(node: NodeLayout, ready: Path) -> str:
    """What the namespace's first process does before it sleeps; ``ready`` appears when done."""
    binds = [["mount", "--bind", str(node.behind(bound)), bound] for bound in BOUND_PATHS]
    lines = [
        "mount --make-rprivate /",
        *map(shlex.join, binds),
        "mount -t tmpfs -o mode=1777,nosuid,nodev shm /dev/shm",
        # Images are many small files, slow to delete on disk; this goes with the namespace.
        shlex.join(
            ["mount", "-t", "tmpfs", "-o", "mode=0711", "images", str(node.containerd_root)]
        ),
        "mount --make-rshared /",
        f": > {shlex.quote(str(ready))}",
        "exec sleep infinity",
    ]
    return "\n".join(lines)


def start_runtime(
    record: Record, layout: Layout, node: NodeLayout, programs: Path, traits: HostTraits
) -> None:
    """Bridge, cgroup, namespace and containerd; returns once containerd answers."""
    network = record.network
    address = ipaddress.IPv4Interface(f"{network.node_address(node.index)}/24")
    host.add_bridge(network.bridge(node.index), address)
    host.add_cgroup(network.cgroup(node.index))
    for folder in (node.containerd_root, *map(node.behind, BOUND_PATHS)):
        folder.mkdir(parents=True, exist_ok=True)
    node.cni.mkdir(exist_ok=True)
    (node.cni / "10-bridge.conflist").write_text(configuration.cni(network, node))
    node.containerd_config.write_text(configuration.containerd(node, traits))
    _open_namespace(layout, node)
    _spawn_inside(layout, node, programs, "containerd", ["--config", str(node.containerd_config)])
    waiting.until(
        lambda: commands.succeeds(inside(layout, node, ctr(programs, "version")), deadline=10),
        f"containerd of {node.name} answers",
        deadline=_CONTAINERD_SECONDS,
        log=node.log("containerd"),
        pid_file=pid_file(layout, node, "containerd"),
    )


def _open_namespace(layout: Layout, node: NodeLayout) -> None:
    ready = node.root / "namespace-ready"
    ready.unlink(missing_ok=True)
    script = namespace_script(node, ready)
    processes.spawn(
        ["unshare", "--mount", "--propagation", "private", "sh", "-euc", script],
        state=layout.state,
        pid_file=pid_file(layout, node, "namespace"),
        log=node.log("namespace"),
        env={NODE_VARIABLE: node.name},
    )
    waiting.until(
        ready.exists,
        f"the mount namespace of {node.name} is set up",
        deadline=_NAMESPACE_SECONDS,
        log=node.log("namespace"),
        pid_file=pid_file(layout, node, "namespace"),
        interval=0.02,
    )


def write_kubelet_files(
    record: Record, layout: Layout, node: NodeLayout, traits: HostTraits
) -> None:
    """Identity and configuration; needs the cluster's authority."""
    pki.make_node(record.network, layout, node)
    text = configuration.kubelet(record.network, node, layout, traits)
    node.kubelet_config.write_text(text)


def start_kubelet(record: Record, layout: Layout, node: NodeLayout, programs: Path) -> None:
    """Does nothing when it runs."""
    if processes.pid_of(pid_file(layout, node, "kubelet")) is None:
        flags = configuration.kubelet_flags(record.network, node)
        flags += record.extra.get("kubelet", [])
        _spawn_inside(layout, node, programs, "kubelet", flags)


def stop_kubelet(layout: Layout, node: NodeLayout) -> None:
    """As a crash would: SIGKILL. Pods go on, the node becomes NotReady after its grace period."""
    pid = processes.pid_of(pid_file(layout, node, "kubelet"))
    if pid is not None:
        processes.send(pid, signal.SIGKILL)
        processes.wait_gone(pid, deadline=10)


def inside(layout: Layout, node: NodeLayout, argv: Sequence[str]) -> list[str]:
    """``argv`` as run in the node's mount namespace. Raises NoCluster when the node is down."""
    pid = processes.pid_of(pid_file(layout, node, "namespace"))
    if pid is None:
        raise NoCluster(f"{node.name} is not running: run up, or node remove {node.name}")
    return ["nsenter", f"--target={pid}", "--mount", "--", *argv]


def ctr(programs: Path, *arguments: str) -> list[str]:
    """A ctr command on the images and containers that Kubernetes sees."""
    return [str(programs / "ctr"), "--address", CONTAINERD_SOCKET, "-n", "k8s.io", *arguments]


def import_image(layout: Layout, node: NodeLayout, programs: Path, archive: Path) -> None:
    """Loads a docker or OCI archive into the node's containerd."""
    argv = ctr(programs, "images", "import", "--local", str(archive))
    commands.run(inside(layout, node, argv), deadline=_IMPORT_SECONDS)


def tear_down(record: Record, layout: Layout, node: NodeLayout) -> None:
    """Ends every process of the node and gives back what it took on the host."""
    kubelet = pid_file(layout, node, "kubelet")
    processes.kill_all(lambda: {pid} if (pid := processes.pid_of(kubelet)) else set(), "kubelet")
    cgroup = record.network.cgroup(node.index)
    mark = {NODE_VARIABLE: node.name}

    def remaining() -> set[int]:
        members = processes.members(layout.state, mark)
        return members | processes.in_cgroups(host.cgroup_folders(cgroup))

    processes.kill_all(remaining, f"processes of {node.name}")
    host.remove_bridge(record.network.bridge(node.index))
    host.remove_cgroup(cgroup)
    host.unmount_below(node.root)
    if node.root.exists():
        shutil.rmtree(node.root)
    for program in ("namespace", "containerd", "kubelet"):
        pid_file(layout, node, program).unlink(missing_ok=True)


def _spawn_inside(
    layout: Layout, node: NodeLayout, programs: Path, program: str, flags: list[str]
) -> None:
    processes.spawn(
        inside(layout, node, [str(programs / program), *flags]),
        state=layout.state,
        pid_file=pid_file(layout, node, program),
        log=node.log(program),
        # containerd finds its shim, and the shim runc, on PATH.
        env={NODE_VARIABLE: node.name, "PATH": f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin"},
    )
