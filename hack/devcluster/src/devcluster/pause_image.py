"""The pause image: one static program in one layer, as a docker archive.

Made with the standard library alone, so that a cluster starts on a machine without image tools::

    <sha256 of config>.json    image configuration
    <sha256 of layer>.tar      the layer: /pause
    manifest.json              [{"Config", "RepoTags", "Layers"}]
"""

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

from devcluster.configuration import PAUSE_IMAGE
from devcluster.fingerprints import of_values

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def pause_archive(cache: Path, programs: Path) -> Path:
    """The archive, written when the cache has none of this program."""
    program = (programs / "pause").read_bytes()
    key = of_values({"program": hashlib.sha256(program).hexdigest(), "name": PAUSE_IMAGE})
    path = cache / "images" / f"pause-{key}.tar"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(".new")
        written.write_bytes(image_archive(PAUSE_IMAGE, "pause", program, platform.machine()))
        written.rename(path)
    return path


def image_archive(reference: str, name: str, program: bytes, machine: str) -> bytes:
    """A docker archive of an image whose only file and entry point is ``/<name>``."""
    layer = _tar({name: (program, 0o755)})
    layer_digest = hashlib.sha256(layer).hexdigest()
    configuration = json.dumps(
        {
            "architecture": _ARCHITECTURES.get(machine, machine),
            "os": "linux",
            "config": {"Entrypoint": [f"/{name}"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
        }
    ).encode()
    configuration_name = f"{hashlib.sha256(configuration).hexdigest()}.json"
    layer_name = f"{layer_digest}.tar"
    manifest = json.dumps(
        [{"Config": configuration_name, "RepoTags": [reference], "Layers": [layer_name]}]
    ).encode()
    return _tar(
        {
            configuration_name: (configuration, 0o644),
            layer_name: (layer, 0o644),
            "manifest.json": (manifest, 0o644),
        }
    )


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    """A tar of files with contents and modes; times and owners are zero."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, (content, mode) in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
