"""The little of a Dockerfile that a cache key needs: which files of the context it copies."""

import json
import shlex

_WILDCARDS = "*?["


def copied_sources(text: str) -> list[str]:
    """Paths in the context that COPY and ADD read; a wildcard stands for its folder, ``.`` for all.

    Sources from other stages (``--from=``) and URLs are no files of the context.
    """
    sources: list[str] = []
    for instruction in _instructions(text):
        keyword, _, rest = instruction.partition(" ")
        if keyword.upper() not in ("COPY", "ADD"):
            continue
        words = _words(rest.strip())
        flags = [word for word in words if word.startswith("--")]
        if not any(flag.startswith("--from=") for flag in flags):
            paths = [word for word in words if not word.startswith("--")][:-1]
            sources += [_without_wildcard(path) for path in paths if "://" not in path]
    return sorted(set(sources))


def _instructions(text: str) -> list[str]:
    """One string per instruction: continued lines joined, comments gone."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip()]


def _words(rest: str) -> list[str]:
    flags = []
    while rest.startswith("--"):
        flag, _, rest = rest.partition(" ")
        flags.append(flag)
        rest = rest.strip()
    if rest.startswith("["):
        return flags + [str(word) for word in json.loads(rest)]
    return flags + shlex.split(rest)


def _without_wildcard(path: str) -> str:
    parts = path.lstrip("/").removeprefix("./").split("/")
    kept: list[str] = []
    for part in parts:
        if any(mark in part for mark in _WILDCARDS):
            break
        kept.append(part)
    return "/".join(kept).rstrip("/") or "."
