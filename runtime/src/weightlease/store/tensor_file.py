"""A safetensors file laid out from its tensors' shapes: header first, then tensors in that order.

Over any writer of payload files, so a store on this host and one behind the agent lay out alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from weightlease.errors import production_failure
from weightlease.safetensors_format import layout_header
from weightlease.store.protocol import Buffer, FileWriter, TensorSpec


@contextmanager
def tensor_file(
    name: str,
    specs: tuple[TensorSpec, ...],
    payload: Callable[[str, int], AbstractContextManager[FileWriter]],
) -> Iterator[TensorFile]:
    """The file `name` of `payload(name, size)`, whose header is written already.

    Raises:
        WeightLeaseError: as `TensorFile.write`; at the end, some tensor lacks bytes.

    """
    header, layout = layout_header(specs)
    sizes = {tensor.name: tensor.end - tensor.start for tensor in layout.tensors}
    with payload(name, len(header) + sum(sizes.values())) as file:
        file.write(header)
        writer = TensorFile(name, file, [(spec.name, sizes[spec.name]) for spec in specs])
        yield writer
        writer.require_complete()


class TensorFile:
    """A `TensorFileWriter`: tensors arrive whole and in their declared order."""

    def __init__(self, name: str, file: FileWriter, sizes: list[tuple[str, int]]) -> None:
        self._name = name
        self._file = file
        self._pending = sizes[::-1]
        self._current = ""
        self._left = 0

    def write(self, name: str, data: Buffer) -> None:
        """Append bytes of tensor `name`.

        Raises:
            WeightLeaseError: another tensor is due, or this one has all its bytes.

        """
        view = memoryview(data).cast("B")
        if name != self._current:
            self._advance_to(name)
        if len(view) > self._left:
            raise production_failure(f"tensor {name!r} was given more bytes than its shape has")
        self._left -= len(view)
        self._file.write(view)

    def require_complete(self) -> None:
        """Check that every tensor has all its bytes."""
        if self._left or any(size for _, size in self._pending):
            missing = self._current if self._left else self._pending[-1][0]
            raise production_failure(f"{self._name!r} lacks bytes of tensor {missing!r}")

    def _advance_to(self, name: str) -> None:
        while not self._left and self._pending:
            self._current, self._left = self._pending.pop()
            if self._current == name:
                return
        due = self._current if self._left else "none"
        raise production_failure(
            f"tensor {name!r} is not the next in declared order; due is {due!r}"
        )
