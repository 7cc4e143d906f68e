"""Brings a whole cluster up and down, and changes its nodes."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from devcluster import (
    binaries,
    control_plane,
    host,
    nodes,
    pki,
    processes,
    record,
    waiting,
)
from devcluster.errors import (
    BadSetting,
    ClusterConflict,
    MissingPrerequisite,
    NoCluster,
    UnknownNode,
)
from devcluster.kubectl import Kubectl
from devcluster.layout import BOUND_PATHS, Layout, NodeLayout
from devcluster.pause_image import pause_archive
from devcluster.progress import say, step
from devcluster.record import Record
from devcluster.settings import MAXIMUM_NODES, Settings

_NODE_READY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster that one set of settings names; it may or may not be running."""

    settings: Settings
    layout: Layout

    @classmethod
    def of(cls, settings: Settings) -> "Cluster":
        for bound in BOUND_PATHS:
            if settings.state.is_relative_to(bound):
                raise BadSetting(f"WEIGHTLEASE_STATE lies below {bound}, which nodes see as theirs")
        return cls(settings=settings, layout=Layout(settings.state))

    @property
    def programs(self) -> Path:
        return binaries.bin_folder(self.settings.cache)

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(program=self.programs / "kubectl", kubeconfig=self.layout.kubeconfig)

    def require_record(self) -> Record:
        """Raises NoCluster."""
        noted = record.load(self.layout.record)
        if noted is None:
            raise NoCluster(f"no cluster in {self.layout.state}: run up")
        return noted

    def node(self, noted: Record, name: str) -> NodeLayout:
        """Raises UnknownNode."""
        if name not in noted.nodes:
            known = ", ".join(sorted(noted.nodes)) or "none"
            raise UnknownNode(f"no node {name!r}; there are: {known}")
        return self.layout.node(name, noted.nodes[name])

    def all_nodes(self, noted: Record) -> list[NodeLayout]:
        return [self.layout.node(name, index) for name, index in sorted(noted.nodes.items())]

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Held by the one command that changes the cluster. Raises ClusterConflict at once."""
        if os.geteuid() != 0:
            raise MissingPrerequisite("a cluster needs root: run this command as root")
        self.layout.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.layout.lock.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ClusterConflict(
                    f"another command is changing the cluster in {self.layout.state}: wait for it"
                ) from error
            yield


def up(cluster: Cluster, count: int, extra: dict[str, list[str]]) -> None:
    """A running cluster with at least ``count`` nodes, whatever was there before."""
    if not 1 <= count <= MAXIMUM_NODES:
        raise BadSetting(f"{count} nodes: give 1 to {MAXIMUM_NODES}")
    with cluster.changing():
        noted = record.load(cluster.layout.record)
        if noted is not None and not _is_whole(cluster, noted):
            with step("removing what is left of an earlier cluster"):
                _remove(cluster)
            noted = None
        with step("finding or building the programs"):
            binaries.ensure(cluster.settings.cache)
        if noted is None:
            with step("starting the control plane"):
                noted = _start(cluster, extra)
        missing = [name for name in _first_names(count) if name not in noted.nodes]
        with step(f"starting {len(missing)} nodes" if missing else "checking the nodes"):
            _add_nodes(cluster, noted, missing)


def down(cluster: Cluster) -> None:
    """Nothing of the cluster is left; also after a crash, also when there is none."""
    if not cluster.layout.state.exists():
        say(f"no cluster in {cluster.layout.state}")
        return
    with cluster.changing(), step("removing the cluster"):
        _remove(cluster)
        shutil.rmtree(cluster.layout.state)


def restart_api(cluster: Cluster) -> None:
    """Kills the API server, as a host may, and starts it again; returns once it is ready."""
    with cluster.changing(), step("restarting the API server"):
        noted = cluster.require_record()
        control_plane.restart_api(noted, cluster.layout, cluster.programs)
        control_plane.wait_for_api(cluster.layout, cluster.kubectl)


def add_node(cluster: Cluster) -> str:
    """Starts one more node; returns its name."""
    with cluster.changing():
        noted = cluster.require_record()
        name = next((name for name in _first_names(MAXIMUM_NODES) if name not in noted.nodes), None)
        if name is None:
            raise BadSetting(f"the cluster has {MAXIMUM_NODES} nodes, the most it can have")
        with step(f"starting {name}"):
            _add_nodes(cluster, noted, [name])
    return name


def remove_node(cluster: Cluster, name: str, *, keep_object: bool) -> None:
    """Ends the node as a power cut would; its Node object goes too unless kept."""
    with cluster.changing():
        noted = cluster.require_record()
        node = cluster.node(noted, name)
        with step(f"removing {name}"):
            nodes.tear_down(noted, cluster.layout, node)
            del noted.nodes[name]
            noted.save(cluster.layout.record)
            if not keep_object:
                cluster.kubectl.run("delete", "node", name, "--ignore-not-found", "--wait=false")


def stop_node(cluster: Cluster, name: str) -> None:
    """Kills the kubelet; pods go on."""
    with cluster.changing():
        noted = cluster.require_record()
        nodes.stop_kubelet(cluster.layout, cluster.node(noted, name))


def start_node(cluster: Cluster, name: str) -> None:
    """Starts a stopped kubelet and waits until the node is Ready."""
    with cluster.changing():
        noted = cluster.require_record()
        node = cluster.node(noted, name)
        nodes.inside(cluster.layout, node, [])
        nodes.start_kubelet(noted, cluster.layout, node, cluster.programs)
        _wait_ready(cluster, [node])


def load(cluster: Cluster, archives: list[Path], *, again: bool) -> None:
    """Imports image archives into every node, and into nodes that are added later.

    Without ``again``, what was loaded from the same path is left out.
    """
    with cluster.changing():
        noted = cluster.require_record()
        # An image that was built anew has another archive: the old one is gone, and so its tag.
        noted.archives = [path for path in noted.archives if Path(path).exists()]
        for path in [archive.absolute() for archive in archives]:
            if str(path) in noted.archives and not again:
                say(f"{path.name} is loaded")
                continue
            with step(f"loading {path.name}"):
                _on_each(cluster.all_nodes(noted), partial(_import, cluster, archive=path))
            noted.archives = [*dict.fromkeys([*noted.archives, str(path)])]
            noted.save(cluster.layout.record)


def _first_names(count: int) -> list[str]:
    return [f"node-{index}" for index in range(1, count + 1)]


def _is_whole(cluster: Cluster, noted: Record) -> bool:
    layout = cluster.layout
    return control_plane.is_running(layout) and all(
        nodes.is_up(layout, node) for node in cluster.all_nodes(noted)
    )


def _check_conflicts(cluster: Cluster) -> None:
    network = cluster.settings.network
    taken = []
    if host.has_address(network.api_address):
        taken.append(f"address {network.api_address}")
    taken += [
        f"port {port} on 127.0.0.1"
        for port in (network.etcd_port, network.etcd_port + 1)
        if host.port_is_taken("127.0.0.1", port)
    ]
    indices = range(1, MAXIMUM_NODES + 1)
    taken += [f"link {name}" for name in map(network.bridge, indices) if host.has_link(name)]
    taken += [
        f"cgroup {name}" for name in map(network.cgroup, indices) if host.cgroup_folders(name)
    ]
    if taken:
        raise ClusterConflict(
            f"already in use: {', '.join(taken)}; if another cluster holds them, give this one "
            "another WEIGHTLEASE_INSTANCE and WEIGHTLEASE_STATE, or run down for the other"
        )


def _start(cluster: Cluster, extra: dict[str, list[str]]) -> Record:
    _check_conflicts(cluster)
    layout, network = cluster.layout, cluster.settings.network
    created = [path for path in BOUND_PATHS if not Path(path).exists()]
    noted = Record(network=network, sysctls=host.read_sysctls(), created=created, extra=extra)
    noted.save(layout.record)
    for path in created:
        Path(path).mkdir(parents=True, exist_ok=True)
    host.add_loopback_address(network.api_address)
    host.write_sysctls({"net/ipv4/ip_forward": "1"})
    host.allow_forwarding(str(network.pod_cidr))
    pki.make_control_plane(network, layout)
    control_plane.start_api(noted, layout, cluster.programs)
    control_plane.wait_for_api(layout, cluster.kubectl)
    control_plane.start_controllers(noted, layout, cluster.programs)
    return noted


def _add_nodes(cluster: Cluster, noted: Record, names: list[str]) -> None:
    """Starts the named nodes, and kubelets that are stopped; returns when all are Ready."""
    traits = nodes.traits(cluster.programs)
    noted.nodes.update({name: int(name.removeprefix("node-")) for name in names})
    noted.save(cluster.layout.record)
    archives = [pause_archive(cluster.settings.cache, cluster.programs)]
    # Those of images that were built anew since are gone.
    archives += [path for path in map(Path, noted.archives) if path.exists()]

    def start(node: NodeLayout) -> None:
        if node.name in names:
            nodes.start_runtime(noted, cluster.layout, node, cluster.programs, traits)
            for archive in archives:
                _import(cluster, node, archive)
            nodes.write_kubelet_files(noted, cluster.layout, node, traits)
        nodes.start_kubelet(noted, cluster.layout, node, cluster.programs)
        node.complete.touch()

    every = cluster.all_nodes(noted)
    _on_each(every, start)
    _wait_ready(cluster, every)
    control_plane.wait_for_controllers(cluster.layout, cluster.kubectl)


def _import(cluster: Cluster, node: NodeLayout, archive: Path) -> None:
    nodes.import_image(cluster.layout, node, cluster.programs, archive)


def _on_each(every: list[NodeLayout], act: Callable[[NodeLayout], None]) -> None:
    with ThreadPoolExecutor(max(1, len(every))) as workers:
        for done in [workers.submit(act, node) for node in every]:
            done.result()


def _wait_ready(cluster: Cluster, every: list[NodeLayout]) -> None:
    for node in every:
        waiting.until(
            partial(_is_ready, cluster, node.name),
            f"{node.name} is Ready",
            deadline=_NODE_READY_SECONDS,
            log=node.log("kubelet"),
            pid_file=nodes.pid_file(cluster.layout, node, "kubelet"),
        )


def _is_ready(cluster: Cluster, name: str) -> bool:
    return name in cluster.kubectl.ready_nodes()


def _restore_shared(noted: Record, layout: Layout) -> None:
    """Kernel settings and folders as they were, unless another cluster still needs them.

    Removing a folder also unmounts what other mount namespaces have mounted on it.
    """
    others = processes.other_clusters(layout.state)
    if others:
        say(f"kernel settings and empty folders stay for {', '.join(sorted(others))}")
        return
    host.write_sysctls(noted.sysctls)
    for path in noted.created:
        with contextlib.suppress(OSError):
            os.rmdir(path)


def _remove(cluster: Cluster) -> None:
    """Kills every process and undoes every change that the record names."""
    layout = cluster.layout
    noted = record.load(layout.record)
    every = cluster.all_nodes(noted) if noted else []
    cgroups = [noted.network.cgroup(node.index) for node in every] if noted else []

    def remaining() -> set[int]:
        folders = [folder for name in cgroups for folder in host.cgroup_folders(name)]
        return processes.members(layout.state) | processes.in_cgroups(folders)

    processes.kill_all(remaining, "the cluster's processes")
    if noted is not None:
        for node in every:
            nodes.tear_down(noted, layout, node)
        host.forbid_forwarding(str(noted.network.pod_cidr))
        host.remove_loopback_address(noted.network.api_address)
        _restore_shared(noted, layout)
    host.unmount_below(layout.state)
    for entry in layout.state.iterdir():
        if entry == layout.lock:
            continue
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
