"""Which files of a component an artifact is made of: a pure decision over the listing.

1. Names with a part that starts with a dot (`.git`, `.cache`, `.gitattributes`) are never taken.
2. `include` and `exclude` are shell patterns over the whole relative path (fnmatch, case counts,
   `*` crosses `/`). With `include`, only files that match one of its patterns; never those that
   match one of `exclude`.
3. Python files and weights in formats that run code or that nothing here reads (`LEFT_OUT`) are
   taken only if an `include` pattern ends in the file's own suffix (`*.py`, `tokenizer.bin`).
4. Payload: the shards that the component's one top-level index names, else every top-level
   `*.safetensors`. Without an index, nested safetensors and alternative splits are refused.
   Beside an index, safetensors that it does not name are not part of the artifact.
5. Assets: everything else that is left, README and licence included: they travel with the weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise

import msgspec

from weightlease.errors import ManifestError
from weightlease.manifest import PAYLOAD_SUFFIX, require_asset_path, require_payload_name
from weightlease.reasons import Reason
from weightlease.source.errors import SourceError, malformed
from weightlease.source.model import SourceFile
from weightlease.source.shard_index import INDEX_SUFFIX, ShardIndex

# fmt: off
LEFT_OUT = frozenset({
    ".bin", ".ckpt", ".dill", ".gguf", ".ggml", ".h5", ".hdf5", ".jit", ".joblib", ".keras",
    ".msgpack", ".npy", ".npz", ".onnx", ".onnx_data", ".ot", ".pb", ".pickle", ".pkl", ".pt",
    ".pth", ".py", ".pyc", ".pyd", ".so", ".tflite", ".torchscript",
})
# fmt: on
MAX_PAYLOAD_FILES = 4096
MAX_ASSETS = 4096
MAX_ASSET_BYTES = 1024 * 1024 * 1024

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{1,6})-of-(?P<count>\d{1,6})\.safetensors")


class Selection(msgspec.Struct, frozen=True):
    """The chosen files, each group sorted by path, and the index that chose the payload."""

    payload: tuple[SourceFile, ...]
    assets: tuple[SourceFile, ...]
    index: ShardIndex | None = None

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """Payload and assets."""
        return self.payload + self.assets

    @property
    def total_bytes(self) -> int:
        """Size of all chosen files together."""
        return sum(file.size for file in self.files)


def candidates(
    files: Iterable[SourceFile], include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> tuple[SourceFile, ...]:
    """The files that names and patterns let through, sorted by path.

    Raises:
        SourceError: `SourceMalformed`: a listing with one path twice.

    """
    taken = sorted(
        (file for file in files if _is_taken(file.path, include, exclude)),
        key=lambda file: file.path,
    )
    for left, right in pairwise(taken):
        if left.path == right.path:
            raise malformed(f"the source lists {left.path!r} twice", path=left.path)
    return tuple(taken)


def index_among(files: Sequence[SourceFile]) -> SourceFile | None:
    """The component's index file, if there is one.

    Raises:
        SourceError: `SourceMalformed`: several, or one that cannot be read.

    """
    found = [file for file in files if _is_top_level(file) and file.path.endswith(INDEX_SUFFIX)]
    if len(found) > 1:
        names = ", ".join(file.path for file in found)
        raise malformed(f"several indexes name shards: {names}; exclude all but one")
    _require_readable(found)
    return found[0] if found else None


def select(files: Sequence[SourceFile], index: ShardIndex | None = None) -> Selection:
    """Split `candidates` into payload and assets.

    Raises:
        SourceError: `MissingShard` with the missing basenames, or `SourceMalformed` with what was
            found and the way out.

    """
    tensors = [file for file in files if file.path.endswith(PAYLOAD_SUFFIX)]
    payload = _indexed(tensors, index) if index is not None else _unindexed(tensors)
    assets = [file for file in files if not file.path.endswith(PAYLOAD_SUFFIX)]
    if not payload:
        raise malformed(_nothing_found(files))
    _require_readable(payload + assets)
    _require_safe_names(payload, assets)
    _require_bounded(payload, assets)
    return Selection(tuple(payload), tuple(assets), index)


def _is_taken(path: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    parts = path.split("/")
    if any(part.startswith(".") for part in parts):
        return False
    matching = [pattern for pattern in include if fnmatchcase(path, pattern)]
    if (include and not matching) or any(fnmatchcase(path, pattern) for pattern in exclude):
        return False
    suffix = _suffix(parts[-1])
    return suffix not in LEFT_OUT or any(pattern.lower().endswith(suffix) for pattern in matching)


def _suffix(name: str) -> str:
    _, dot, last = name.rpartition(".")
    return f"{dot}{last}".lower()


def _is_top_level(file: SourceFile) -> bool:
    return "/" not in file.path


def _indexed(tensors: Sequence[SourceFile], index: ShardIndex) -> list[SourceFile]:
    present = {file.path: file for file in tensors}
    missing = [name for name in index.shards if name not in present]
    if missing:
        raise SourceError(
            Reason.MISSING_SHARD,
            f"index {index.path!r} names {len(index.shards)} shards and {len(missing)} are not "
            f"among the selected files: {_some(missing)}",
            missing=missing[:100],
        )
    return [present[name] for name in index.shards]


def _unindexed(tensors: Sequence[SourceFile]) -> list[SourceFile]:
    for file in tensors:
        if not _is_top_level(file):
            folder = file.path.rpartition("/")[0]
            raise malformed(
                f"{file.path!r} is in a subfolder; declare a component with path {folder!r} for "
                "it, or exclude it",
                path=file.path,
            )
    _require_one_split([file.path for file in tensors])
    return list(tensors)


def _require_one_split(names: Sequence[str]) -> None:
    splits: dict[tuple[str, int], set[int]] = {}
    whole = set()
    for name in names:
        if match := _SPLIT.fullmatch(name):
            numbers = splits.setdefault((match["stem"], int(match["count"])), set())
            numbers.add(int(match["number"]))
        else:
            whole.add(name.removesuffix(PAYLOAD_SUFFIX))
    stems = [stem for stem, _ in splits] + sorted(whole)
    for stem in stems:
        # model + model-00001-of-00002, or model + model.fp16: two spellings of one checkpoint
        variant = [other for other in whole if other.startswith(f"{stem}.")]
        if stems.count(stem) > 1 or variant:
            raise malformed(
                f"{stem!r} comes in several alternative files and no index says which count: "
                f"{_some(names)}; exclude all but one"
            )
    for (stem, count), numbers in splits.items():
        if numbers != set(range(1, count + 1)):
            raise SourceError(
                Reason.MISSING_SHARD,
                f"{stem!r} is split into {count} shards and {len(numbers)} are there: "
                f"{_some(names)}",
            )


def _nothing_found(files: Sequence[SourceFile]) -> str:
    if not files:
        return (
            "no file is selected: the folder is empty, or holds only hidden files, Python files "
            "and weights in other formats; convert the checkpoint to safetensors"
        )
    return (
        f"no {PAYLOAD_SUFFIX} file is selected, only {_some([file.path for file in files])}; "
        "convert the checkpoint to safetensors, or correct path, include and exclude"
    )


def _require_readable(files: Sequence[SourceFile]) -> None:
    broken = [file for file in files if file.problem]
    if broken:
        listed = _some([f"{printable(file.path)} ({file.problem})" for file in broken])
        raise malformed(
            f"{len(broken)} selected files cannot be read: {listed}; repair or exclude them"
        )


def _require_safe_names(payload: Sequence[SourceFile], assets: Sequence[SourceFile]) -> None:
    try:
        for file in payload:
            require_payload_name(file.path)
        for file in assets:
            require_asset_path(file.path)
            file.path.encode()
    except (ManifestError, UnicodeEncodeError) as error:
        raise malformed(f"a file's name cannot be published: {printable(str(error))}") from None


def _require_bounded(payload: Sequence[SourceFile], assets: Sequence[SourceFile]) -> None:
    if len(payload) > MAX_PAYLOAD_FILES:
        raise malformed(f"{len(payload)} shards exceed the limit of {MAX_PAYLOAD_FILES}")
    if len(assets) > MAX_ASSETS:
        raise malformed(f"{len(assets)} assets exceed the limit of {MAX_ASSETS}; exclude some")
    total = sum(file.size for file in assets)
    if total > MAX_ASSET_BYTES:
        largest = max(assets, key=lambda file: file.size).path
        raise malformed(
            f"assets of {total} bytes exceed the limit of {MAX_ASSET_BYTES}; exclude some, the "
            f"largest is {largest!r}"
        )


def printable(text: str) -> str:
    """`text` with what is not valid Unicode escaped, so that it can be logged and sent."""
    return text.encode("utf-8", "backslashreplace").decode()


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(printable(name) for name in names[:10])
    return shown + (f" and {len(names) - 10} more" if len(names) > 10 else "")
