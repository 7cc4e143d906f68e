"""A disk that forgets: replays recorded system calls and shows what a power cut would leave.

A file's bytes and mode are safe once it was fsynced, a directory entry once its directory was. What
is not safe may or may not be there, so two extremes are shown: `strict` drops every change that was
not made safe; `eager` keeps every directory entry and mode but still drops the bytes of files that
were not fsynced, as a journal that orders metadata alone would.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from system_calls import Call


@dataclass
class Node:
    """A file or directory: what programs see, and what the disk has safely."""

    is_directory: bool
    mode: int
    size: int = 0
    entries: dict[str, Node] = field(default_factory=dict)
    safe_mode: int = 0
    safe_size: int = 0
    safe_entries: dict[str, Node] = field(default_factory=dict)
    content: bytes = b""
    serial: int = 0

    def make_safe(self) -> None:
        self.safe_mode = self.mode
        self.safe_size = self.size
        self.safe_entries = dict(self.entries)


class ForgetfulDisk:
    """The tree below `root`, all of it safe at the start."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = _load(root)
        self.created = 0
        self.contents: dict[int, bytes] = {}

    def apply(self, call: Call) -> None:
        """Do what a successful system call does."""
        if not call.succeeded:
            return
        if call.creates:
            self._create(call.opened, Node(is_directory=False, mode=0o600))
        elif call.name == "mkdir":
            self._create(call.paths[0], Node(is_directory=True, mode=call.mode))
        elif call.name == "rename":
            node = self._remove(call.paths[0])
            self._parent(call.paths[1]).entries[os.path.basename(call.paths[1])] = node
        elif call.name in {"unlink", "rmdir"}:
            self._remove(call.paths[0])
        elif call.name in {"chmod", "fchmod"}:
            place = call.paths[0] if call.name == "chmod" else call.descriptor
            self._node(place).mode = call.mode
        elif call.name == "write":
            self._node(call.descriptor).size += int(call.result)
        elif call.name in {"fsync", "fdatasync"}:
            self._node(call.descriptor).make_safe()

    def after(self, calls: list[Call], count: int, finished: Path) -> ForgetfulDisk:
        """A copy of this disk after the first `count` of `calls`.

        The bytes of files come from `finished`, the tree as the real run left it: files are written
        front to back and once, so what one held at any moment is the front of what it holds now.
        """
        whole = copy.deepcopy(self)
        for call in calls:
            whole.apply(call)
        disk = copy.deepcopy(self)
        disk.contents = dict(_contents(whole.top, finished))
        for call in calls[:count]:
            disk.apply(call)
        return disk

    def after_power_cut(self, target: Path, *, eager: bool) -> None:
        """Write to `target` what would be found."""
        _store(self.top, target, eager=eager)

    def _create(self, path: str, node: Node) -> None:
        self.created += 1
        node.serial = self.created
        node.content = self.contents.get(node.serial, b"")
        self._parent(path).entries.setdefault(os.path.basename(path), node)

    def _remove(self, path: str) -> Node:
        return self._parent(path).entries.pop(os.path.basename(path))

    def _parent(self, path: str) -> Node:
        return self._node(os.path.dirname(path))

    def _node(self, path: str) -> Node:
        node = self.top
        for part in Path(path).relative_to(self.root).parts:
            node = node.entries[part]
        return node


def _load(path: Path) -> Node:
    node = Node(path.is_dir(), path.stat().st_mode & 0o7777)
    if node.is_directory:
        node.entries = {child.name: _load(child) for child in path.iterdir()}
    else:
        node.content = path.read_bytes()
        node.size = len(node.content)
    node.make_safe()
    return node


def _contents(node: Node, path: Path) -> Iterator[tuple[int, bytes]]:
    if not node.is_directory:
        data = path.read_bytes()
        assert len(data) == node.size, path
        yield node.serial, data
    for name, child in node.entries.items():
        yield from _contents(child, path / name)


def _store(node: Node, path: Path, *, eager: bool) -> None:
    if node.is_directory:
        path.mkdir()
        for name, child in (node.entries if eager else node.safe_entries).items():
            _store(child, path / name, eager=eager)
    else:
        path.write_bytes(node.content[: node.safe_size])
    path.chmod(node.mode if eager else node.safe_mode)
