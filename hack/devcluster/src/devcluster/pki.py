"""The cluster's certificate authority and the key pairs it signs, made by openssl (3 or later).

Users are certificates, as on a real cluster: the subject's CN is the user, its O the group.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devcluster import commands, configuration
from devcluster.layout import Layout, NodeLayout
from devcluster.settings import Network

_DAYS = "3650"
# Without a file of our own openssl would add the extensions of a CA to every certificate.
_OPENSSL_CONFIGURATION = "[req]\ndistinguished_name = subject\n[subject]\n"
_CURVE = ("-pkeyopt", "ec_paramgen_curve:P-256")
_NEW_KEY = ("-newkey", "ec", *_CURVE, "-noenc")


@dataclass(frozen=True, slots=True)
class Subject:
    """Who a certificate speaks for, and the addresses it may serve at."""

    user: str
    group: str | None = None
    serves: tuple[str, ...] = ()

    def name(self) -> str:
        """As openssl's ``-subj`` wants it."""
        group = f"/O={self.group}" if self.group else ""
        return f"{group}/CN={self.user}"

    def extensions(self) -> list[str]:
        usage = "clientAuth,serverAuth" if self.serves else "clientAuth"
        extensions = [
            "basicConstraints=critical,CA:FALSE",
            "keyUsage=critical,digitalSignature",
            f"extendedKeyUsage={usage}",
        ]
        if self.serves:
            extensions.append("subjectAltName=" + ",".join(self.serves))
        return extensions


def make_authority(layout: Layout) -> None:
    """The CA and the key that signs service account tokens."""
    pki = layout.pki
    pki.mkdir(mode=0o700, parents=True, exist_ok=True)
    (pki / "openssl.cnf").write_text(_OPENSSL_CONFIGURATION)
    _request(
        layout,
        "ca",
        "/CN=weightlease-devcluster",
        ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign"],
    )
    key = pki / "service-accounts.key"
    commands.run(
        ["openssl", "genpkey", "-algorithm", "EC", *_CURVE, "-out", key],
    )
    commands.run(["openssl", "pkey", "-in", key, "-pubout", "-out", pki / "service-accounts.pub"])


def sign(layout: Layout, name: str, subject: Subject) -> None:
    """``pki/<name>.crt`` and ``.key`` for ``subject``."""
    authority = ["-CA", f"{layout.pki}/ca.crt", "-CAkey", f"{layout.pki}/ca.key"]
    _request(layout, name, subject.name(), subject.extensions(), authority)


def _request(
    layout: Layout, name: str, subject: str, extensions: list[str], more: Sequence[str] = ()
) -> None:
    added = [part for extension in extensions for part in ("-addext", extension)]
    commands.run(
        [
            *("openssl", "req", "-x509", "-config", layout.pki / "openssl.cnf", *_NEW_KEY),
            *("-days", _DAYS, "-subj", subject, *added, *more),
            *("-keyout", layout.pki / f"{name}.key", "-out", layout.pki / f"{name}.crt"),
        ]
    )


def make_control_plane(network: Network, layout: Layout) -> None:
    """Authority, serving and client certificates, kubeconfigs of all but the kubelets."""
    make_authority(layout)
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"]
    names.append("kubernetes.default.svc.cluster.local")
    serves = (f"IP:{network.api_address}", *(f"DNS:{name}" for name in names))
    sign(layout, "kube-apiserver", Subject("kube-apiserver", serves=serves))
    sign(layout, "kubelet-client", Subject("kube-apiserver-kubelet-client", "system:masters"))
    sign(layout, "admin", Subject("admin", "system:masters"))
    write_kubeconfig(network, layout, "admin", layout.kubeconfig)
    for component in ("kube-controller-manager", "kube-scheduler"):
        sign(layout, component, Subject(f"system:{component}"))
        write_kubeconfig(network, layout, component, layout.component_kubeconfig(component))


def make_node(network: Network, layout: Layout, node: NodeLayout) -> None:
    """The kubelet's identity (``system:node:<name>``) and serving certificate in one."""
    address = network.node_address(node.index)
    subject = Subject(
        f"system:node:{node.name}", "system:nodes", (f"IP:{address}", f"DNS:{node.name}")
    )
    sign(layout, node.name, subject)
    write_kubeconfig(network, layout, node.name, node.kubelet_kubeconfig)


def write_kubeconfig(network: Network, layout: Layout, name: str, path: Path) -> None:
    pki = layout.pki
    text = configuration.kubeconfig(
        server=f"https://{network.api_address}:443",
        ca=(pki / "ca.crt").read_bytes(),
        certificate=(pki / f"{name}.crt").read_bytes(),
        key=(pki / f"{name}.key").read_bytes(),
        user=name,
    )
    path.touch(mode=0o600)
    path.write_text(text)
