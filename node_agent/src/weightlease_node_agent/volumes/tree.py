"""A volume's file tree: the source's names, as links to the store's own files.

    files/model.safetensors        → ../.content/payloads/model.safetensors
    files/config.json              → ../.content/assets/<sha256>
    files/tokenizer/vocab.txt      → ../../.content/assets/<sha256>
    .content/payloads  .content/assets     empty here: the driver mounts the store's folders there

The Hub's own cache is laid out alike, so engines are used to links. Relative ones hold wherever a
pod mounts the volume.
"""

from __future__ import annotations

import os
from pathlib import Path

from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.manifest import Manifest
from weightlease.names import VOLUME_FILES

CONTENT_DIRECTORY = ".content"
PAYLOADS_DIRECTORY = f"{CONTENT_DIRECTORY}/payloads"
ASSETS_DIRECTORY = f"{CONTENT_DIRECTORY}/assets"
_DIRECTORY_MODE = 0o755


def plan_links(manifest: Manifest) -> dict[str, str]:
    """Each path below `files/`, and where its link leads.

    Raises:
        WeightLeaseError: unsupported, for names that one tree can't hold.

    """
    sources = [
        (file.file_name, f"{PAYLOADS_DIRECTORY}/{file.file_name}") for file in manifest.files
    ]
    sources += [(asset.path, f"{ASSETS_DIRECTORY}/{asset.sha256}") for asset in manifest.assets]
    links: dict[str, str] = {}
    folders: set[str] = set()
    for path, target in sources:
        parts = path.split("/")
        above = {"/".join(parts[:depth]) for depth in range(1, len(parts))}
        if path in links or path in folders or above & links.keys():
            raise _unsupported(path)
        folders |= above
        links[path] = "../" * len(parts) + target
    return links


def write_tree(folder: Path, links: dict[str, str]) -> None:
    """Make the links and the empty folders below `folder`, which holds neither yet.

    Raises:
        OSError: the folder can't be written.

    """
    for name in (CONTENT_DIRECTORY, PAYLOADS_DIRECTORY, ASSETS_DIRECTORY, VOLUME_FILES):
        (folder / name).mkdir(mode=_DIRECTORY_MODE)
    for path, target in links.items():
        link = folder / VOLUME_FILES / path
        link.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        os.symlink(target, link)


def _unsupported(path: str) -> WeightLeaseError:
    return WeightLeaseError.of(
        Stage.ACCESS,
        FailureCode.UNSUPPORTED,
        f"{path[:200]!r} is a file twice, or a file and a folder, in the artifact's tree; "
        "lease it through the socket instead",
    )
