"""A Kubernetes API in memory: resource versions, merge patches, conflicts, and faults on demand."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from weightlease_operator.api_errors import Conflict, NotFound
from weightlease_operator.kinds import Kind

Object = dict[str, Any]


class FakeApi:
    """`before` is called with verb, plural and name ahead of each write, and may raise or write."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.calls: list[tuple[str, str, str]] = []
        self.before: Callable[[str, str, str], None] = lambda _verb, _plural, _name: None
        self._version = 100

    def put(self, kind: Kind, body: Mapping[str, Any]) -> Object:
        """Store an object as it is, with a new resource version."""
        stored = copy.deepcopy(dict(body))
        metadata = stored["metadata"]
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        self.objects[kind.plural, metadata.get("namespace", ""), metadata["name"]] = stored
        return copy.deepcopy(stored)

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        found = self.objects.get((kind.plural, namespace, name))
        if found is None:
            raise NotFound(f"there is no {kind.plural}/{name}", 404)
        return copy.deepcopy(found)

    async def find(self, kind: Kind, namespace: str, selector: str) -> list[Object]:
        """Objects of the kind whose involvedObject.uid is the selector's."""
        self.calls.append(("find", kind.plural, selector))
        return [
            copy.deepcopy(stored)
            for (plural, inside, _), stored in self.objects.items()
            if (plural, inside) == (kind.plural, namespace)
            and selector == f"involvedObject.uid={stored['involvedObject']['uid']}"
        ]

    async def create(self, kind: Kind, namespace: str, body: Mapping[str, Any]) -> Object:
        name = body["metadata"]["name"]
        self._write("create", kind, name)
        if (kind.plural, namespace, name) in self.objects:
            raise Conflict(f"{kind.plural}/{name} exists", 409)
        return self.put(kind, body)

    async def patch(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        body: Mapping[str, Any],
        *,
        subresource: str = "",
    ) -> Object:
        self._write("patch", kind, name)
        stored = await self.get(kind, namespace, name)
        expected = body.get("metadata", {}).get("resourceVersion")
        if expected not in (None, "", stored["metadata"]["resourceVersion"]):
            raise Conflict(f"{kind.plural}/{name} has changed", 409)
        return self.put(kind, _merged(stored, body))

    async def delete(self, kind: Kind, namespace: str, name: str) -> None:
        self._write("delete", kind, name)
        await self.get(kind, namespace, name)
        del self.objects[kind.plural, namespace, name]

    def _write(self, verb: str, kind: Kind, name: str) -> None:
        self.calls.append((verb, kind.plural, name))
        self.before(verb, kind.plural, name)


def _merged(target: Any, patch: Any) -> Any:
    """RFC 7396, section 2."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value)
    return result
