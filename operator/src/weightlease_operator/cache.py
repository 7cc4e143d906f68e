"""Objects of one kind as views, kept current by watch events, own writes and whole lists.

Watch streams can lose a deletion while they reconnect, so from time to time a whole list replaces
the content. What a list does not yet know, or a late event no longer knows, must not win: the
resource version decides, and a deletion is remembered until the next list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from weightlease_operator.views import Raw

V = TypeVar("V")
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Change(Generic[V]):
    """What an object was and is; None where it is not there."""

    key: Key
    before: V | None
    after: V | None

    @property
    def visible(self) -> bool:
        """Whether anything that the view shows has changed."""
        return self.before != self.after


class Cache(Generic[V]):
    """`view` cuts what is kept from an object; `index` groups views, for `select`."""

    def __init__(
        self, view: Callable[[Raw], V | None], index: Callable[[V], str] = lambda _view: ""
    ) -> None:
        self._view, self._index = view, index
        self._items: dict[Key, tuple[int, V | None]] = {}
        self._groups: dict[str, dict[Key, V]] = {}
        self._deleted: dict[Key, int] = {}

    def get(self, namespace: str, name: str) -> V | None:
        _, view = self._items.get((namespace, name), (0, None))
        return view

    def keys(self) -> list[Key]:
        return list(self._items)

    def items(self) -> list[tuple[Key, V]]:
        return [(key, view) for key, (_, view) in self._items.items() if view is not None]

    def select(self, group: str) -> list[V]:
        """The views of one group, by key."""
        found = self._groups.get(group, {})
        return [found[key] for key in sorted(found)]

    def put(self, raw: Raw) -> Change[V]:
        """Take an object as of its resource version, unless a later one is known."""
        key, version = key_of(raw), version_of(raw)
        known, before = self._items.get(key, (0, None))
        if version < known or version <= self._deleted.get(key, 0):
            return Change(key, before, before)
        after = self._view(raw)
        self._set(key, version, before, after)
        return Change(key, before, after)

    def remove(self, raw: Raw) -> Change[V]:
        """The object is gone as of its resource version."""
        key, version = key_of(raw), version_of(raw)
        known, before = self._items.get(key, (0, None))
        if version < known:
            return Change(key, before, before)
        self._deleted[key] = max(version, self._deleted.get(key, 0))
        self._drop(key, before)
        return Change(key, before, None)

    def forget(self, namespace: str, name: str) -> None:
        """A call has shown that the object is gone; its version is not known."""
        key = (namespace, name)
        self._drop(key, self.get(*key))

    def replace(self, raws: Iterable[Mapping[str, Any]], version: str) -> list[Change[V]]:
        """Take a whole list; what it lacks is gone, unless it is younger than the list."""
        listed = _number(version)
        changes, seen = [], set()
        for raw in raws:
            seen.add(key_of(raw))
            changes.append(self.put(raw))
        for key, (known, before) in list(self._items.items()):
            if key not in seen and known <= listed:
                self._drop(key, before)
                changes.append(Change(key, before, None))
        self._deleted = {key: at for key, at in self._deleted.items() if at > listed}
        return [change for change in changes if change.visible]

    def _set(self, key: Key, version: int, before: V | None, after: V | None) -> None:
        self._drop(key, before)
        self._items[key] = (version, after)
        if after is not None:
            self._groups.setdefault(self._index(after), {})[key] = after

    def _drop(self, key: Key, before: V | None) -> None:
        self._items.pop(key, None)
        if before is None:
            return
        group = self._index(before)
        members = self._groups.get(group, {})
        members.pop(key, None)
        if not members:
            self._groups.pop(group, None)


def key_of(raw: Raw) -> Key:
    metadata = raw["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def version_of(raw: Raw) -> int:
    return _number(raw["metadata"].get("resourceVersion"))


def _number(version: object) -> int:
    """Resource versions of one kind are comparable decimal numbers (KEP-5504); 0 without one."""
    return int(version) if isinstance(version, str) and version.isdecimal() else 0
