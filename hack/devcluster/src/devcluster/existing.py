"""A cluster that the user brought, by WEIGHTLEASE_KUBECONFIG: looked at, never changed."""

import shutil
from pathlib import Path

from devcluster import binaries
from devcluster.errors import MissingPrerequisite, NoCluster
from devcluster.kubectl import Kubectl
from devcluster.progress import say
from devcluster.settings import Settings


def check(settings: Settings) -> None:
    """Raises NoCluster when it does not answer or has no node that is Ready."""
    kubeconfig = settings.existing_kubeconfig
    if kubeconfig is None or not kubeconfig.is_file():
        raise NoCluster(f"WEIGHTLEASE_KUBECONFIG is {kubeconfig}: no such file")
    own = binaries.bin_folder(settings.cache) / "kubectl"
    program = str(own) if own.exists() else shutil.which("kubectl")
    if program is None:
        raise MissingPrerequisite("kubectl was not found: install it, or run the build command")
    ready = Kubectl(Path(program), kubeconfig).ready_nodes()
    if not ready:
        raise NoCluster(f"the cluster of {kubeconfig} does not answer, or no node is Ready")
    say(f"using the cluster of {kubeconfig}: {len(ready)} nodes are Ready")
