"""kubectl as a typed object: every call has a deadline, every failure its stderr."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]


class KubectlError(RuntimeError):
    """A call that failed; the text is what kubectl said."""


class Timeout(RuntimeError):
    """Something did not come true in time; the text says what was seen last."""


@dataclass(frozen=True)
class Kubectl:
    """One cluster, reached by the environment that `devcluster env` prints."""

    environment: Mapping[str, str]

    def __call__(self, *arguments: str, stdin: str = "", seconds: float = 60) -> str:
        """Run `kubectl arguments` and return its output.

        Raises:
            KubectlError: a non-zero exit.

        """
        done = subprocess.run(
            ["kubectl", *arguments],
            env=dict(self.environment),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if done.returncode:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def apply(self, *objects: Object) -> None:
        """Apply objects in order."""
        self("apply", "-f", "-", stdin=_document(objects))

    def create(self, *objects: Object) -> None:
        """Create objects in order; what exists is an error."""
        self("create", "-f", "-", stdin=_document(objects))

    def get(self, kind: str, name: str, namespace: str = "") -> Object:
        """One object."""
        return self._json("get", kind, name, *_in(namespace))

    def find(self, kind: str, name: str, namespace: str = "") -> Object | None:
        """One object, or None where there is none."""
        output = self("get", kind, name, *_in(namespace), "-o", "json", "--ignore-not-found")
        found: Object | None = json.loads(output) if output.strip() else None
        return found

    def list(self, kind: str, namespace: str = "", selector: str = "") -> list[Object]:
        """All objects of a kind, in one namespace or in all."""
        scope = _in(namespace) if namespace else ["--all-namespaces"]
        items: list[Object] = self._json("get", kind, *scope, "-l", selector)["items"]
        return items

    def delete(self, kind: str, name: str, namespace: str = "", *, wait: bool = True) -> None:
        """Delete one object; a missing one is fine."""
        self(
            "delete", kind, name, *_in(namespace), "--ignore-not-found",
            f"--wait={str(wait).lower()}", "--timeout=120s", seconds=150,
        )  # fmt: skip

    def patch_status(self, kind: str, name: str, patch: Object, namespace: str = "") -> None:
        """Merge `patch` into an object's status subresource."""
        self(
            "patch", kind, name, *_in(namespace), "--subresource=status", "--type=merge",
            "-p", json.dumps(patch),
        )  # fmt: skip

    def logs(self, pod: str, namespace: str, *options: str) -> str:
        """A pod's output so far."""
        return self("logs", pod, *_in(namespace), *options)

    def exec(self, pod: str, namespace: str, *command: str, seconds: float = 120) -> str:
        """Run a program in a pod."""
        return self("exec", pod, *_in(namespace), "--", *command, seconds=seconds)

    def wait_for_condition(
        self, kind: str, name: str, condition: str, namespace: str = "", *, seconds: float = 180
    ) -> None:
        """`kubectl wait --for=condition=…`, as a user would.

        Raises:
            Timeout: with the object's conditions as they were last.

        """
        try:
            self(
                "wait", f"--for=condition={condition}", f"{kind}/{name}", *_in(namespace),
                f"--timeout={seconds:.0f}s", seconds=seconds + 20,
            )  # fmt: skip
        except KubectlError as error:
            status = (self.find(kind, name, namespace) or {}).get("status", {})
            shown = json.dumps(status, indent=1)[:4000]
            raise Timeout(f"{kind}/{name} is not {condition}: {error}\n{shown}") from error

    def _json(self, *arguments: str) -> Object:
        value: Object = json.loads(self(*arguments, "-o", "json"))
        return value


def until(
    what: str, probe: Callable[[], Any], *, seconds: float = 90, every: float = 0.5
) -> Any:  # fmt: skip
    """Ask `probe` until its answer is true, and return that answer.

    Raises:
        Timeout: `what` did not come true; the last answer or error is in the text.

    """
    deadline = time.monotonic() + seconds
    last: object = None
    while True:
        try:
            last = probe()
            if last:
                return last
        except (KubectlError, OSError, ValueError, KeyError, IndexError) as error:
            last = error
        if time.monotonic() > deadline:
            raise Timeout(f"{what}: not within {seconds:.0f} s; last seen: {last!r}"[:4000])
        time.sleep(every)


def _in(namespace: str) -> list[str]:
    return ["-n", namespace] if namespace else []


def _document(objects: Sequence[Object]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
