"""Keys of cached results: equal inputs, equal key; 12 hexadecimal digits of a SHA-256."""

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from devcluster.components import Component

_LENGTH = 12


def of_values(values: Mapping[str, str]) -> str:
    """Key of named strings, whatever their order."""
    digest = hashlib.sha256()
    for name in sorted(values):
        for part in (name, values[name]):
            # The length in front keeps ("a", "bc") and ("ab", "c") apart.
            digest.update(f"{len(part.encode())}:{part}".encode())
    return digest.hexdigest()[:_LENGTH]


def of_component(component: Component, architecture: str) -> str:
    """Key of a component's programs: sources, pinned modules, flags."""
    values = {
        "architecture": architecture,
        "arguments": "\0".join(component.build_arguments(Path("out"))),
        "static": str(component.static_cgo),
    }
    for path in sorted(component.module.iterdir()):
        if path.suffix == ".go" or path.name in ("go.mod", "go.sum"):
            values[f"file {path.name}"] = path.read_text()
    return of_values(values)


def of_files(root: Path, paths: Iterable[str]) -> str:
    """Key of files below ``root``: names, contents, links, and whether each may be executed."""
    values = {}
    for path in paths:
        full = root / path
        try:
            mode = full.lstat().st_mode
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(mode):
            values[path] = f"link {os.readlink(full)}"
        elif stat.S_ISREG(mode):
            content = hashlib.sha256(full.read_bytes()).hexdigest()
            values[path] = f"{'x' if mode & stat.S_IXUSR else '-'} {content}"
    return of_values(values)
